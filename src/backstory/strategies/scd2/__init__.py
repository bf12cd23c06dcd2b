"""A full copy of the current state, loaded into a base and its SCD Type 2 history."""
