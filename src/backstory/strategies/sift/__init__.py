"""Which records of a full copy may differ from what is stored; it knows rows and keys, no strategy."""
