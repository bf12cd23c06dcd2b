"""A small delivery on the driver, by the outcomes that it shares with Spark."""
