"""Where tables stand: the only rooms that write."""
