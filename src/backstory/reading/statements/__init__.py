"""Histories in databases: each question is a query of any dialect (section 7.4)."""
