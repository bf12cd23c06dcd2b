"""What the outside sees of a running process: log lines."""
