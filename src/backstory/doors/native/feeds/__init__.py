"""Feeds of changes, in any order, into tables of layout `versions` (native.md, sections 2.5 to 2.7)."""
