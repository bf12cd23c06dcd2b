"""The sentence: a delivery is planned and committed once."""
