"""Tables in Iceberg, by Spark and its Java: no other room talks to Iceberg, and only the engine commits."""
