"""Changes to a table's columns, key, sync mode and old rows (section 6)."""
