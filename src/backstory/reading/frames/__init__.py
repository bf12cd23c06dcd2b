"""Histories in a warehouse: each question is a DataFrame."""
