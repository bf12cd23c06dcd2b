"""The specification in plain Python, slow and obvious: every plan is held to it."""
