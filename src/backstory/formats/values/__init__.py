"""Values of one type from texts and from values of another."""
