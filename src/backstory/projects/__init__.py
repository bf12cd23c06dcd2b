"""Everything that a team keeps, declared in one file, and the command that keeps it."""
