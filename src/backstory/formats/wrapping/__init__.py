"""Readers for encrypted, compressed and archived files."""
