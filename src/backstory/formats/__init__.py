"""Readers that turn bytes into rows, one for each format."""
