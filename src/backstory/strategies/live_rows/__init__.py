"""Replace, update and delete on a table without history: one row for each key."""
