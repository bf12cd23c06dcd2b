"""Upkeep of histories from any door: check, repair, rewind, forget, maintain, prune, relocate."""
