"""Tables and their stores. No other room writes tables."""
