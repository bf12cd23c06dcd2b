"""Native tables: the history of any source that can be read whole, or as a feed of changes."""
