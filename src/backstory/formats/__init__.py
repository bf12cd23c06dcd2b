"""Bytes become rows: one reader for each format, whoever asks."""
