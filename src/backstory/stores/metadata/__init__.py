"""Tables by their Iceberg metadata, with or without Spark."""
