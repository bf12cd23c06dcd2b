"""Reading: the same words for every layout; written against the layout, not the door."""
