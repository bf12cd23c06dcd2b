"""Native tables: a history of anything that can be read whole."""
