"""Log lines, metrics and progress of a running process."""
