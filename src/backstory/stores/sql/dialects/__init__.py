"""Databases by the one contract of section 5: the core says what, a dialect gives it its shape."""
