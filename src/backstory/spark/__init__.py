"""The Spark session, embedded or the caller's."""
