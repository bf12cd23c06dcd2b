"""Project files, which declare all tables of a team, and their runs."""
