"""The specification in plain Python, slow and obvious. The tests compare every plan with it."""
