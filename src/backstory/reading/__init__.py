"""Read tables of every layout: current rows, past states, differences, timelines, joins and changes."""
