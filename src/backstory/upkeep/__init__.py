"""Upkeep: what is done to histories beside loading them; written against the history, not the door."""
