"""Upkeep of histories, whatever door wrote them: check, repair, rewind, forget, maintain, prune, relocate."""
