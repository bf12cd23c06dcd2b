"""Fetching: a polling source is asked, and what is new lies in files that can be read."""
