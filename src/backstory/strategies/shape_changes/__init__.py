"""A table's rows become those of another mode, or of a column that came, went or was set (section 6)."""
