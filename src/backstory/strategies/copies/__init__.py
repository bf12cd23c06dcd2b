"""Full copies into a table of layout `versions` (native.md, sections 1 to 2.3)."""
