"""Readers that turn the change feeds of other systems into events (native.md, V61 to V65)."""
