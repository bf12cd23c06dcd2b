"""Feeds of changes, in any order and among copies, into a table of layout `versions` (native.md)."""
