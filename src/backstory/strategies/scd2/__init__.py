"""A full copy of the current state: what appeared, changed, vanished, and what is the same."""
