"""Histories in a browser: the answers of reading as pages, read only."""
