"""Tables as their Iceberg metadata tells of them: with Spark, or without."""
