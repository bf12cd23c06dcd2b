"""Feeds of changes into tables of layout `versions`, in any order and mixed with copies."""
