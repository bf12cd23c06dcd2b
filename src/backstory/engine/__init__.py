"""The engine: it plans each delivery and commits it once."""
