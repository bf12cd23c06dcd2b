"""Feeds of changes (native.md 2.5 to 2.11), alone and among copies."""
