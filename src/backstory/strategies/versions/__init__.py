"""Ordered changes into versions of a record, each with a start and an end."""
