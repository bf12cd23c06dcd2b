"""Tables in Iceberg, by the SQL of a session of Spark Connect."""
