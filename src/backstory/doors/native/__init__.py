"""Native tables: a history of any source that can be read whole, or of its changes."""
