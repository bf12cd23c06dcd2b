"""Tables as plain values in this process: slow, obvious, right; the simulator of a store."""
