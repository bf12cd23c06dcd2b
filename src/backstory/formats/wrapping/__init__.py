"""Ciphers, compression and archives around files."""
