"""What reading a history means, in plain Python: the answer for small tables, the oracle of frames."""
