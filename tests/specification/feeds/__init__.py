"""Feeds of changes (native.md 2.5 to 2.11), on their own and mixed with copies."""
