"""A dialect's examination: every statement is written, and run where there is an engine (section 5.4)."""
