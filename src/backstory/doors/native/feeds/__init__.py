"""Feeds of changes, in any order, into tables of layout `versions`."""
