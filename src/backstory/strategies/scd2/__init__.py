"""The load of a full copy of the current state into a base table and its SCD Type 2 history."""
