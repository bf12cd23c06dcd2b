"""Tables from their Iceberg metadata, with or without Spark."""
