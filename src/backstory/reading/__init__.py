"""Read tables of every layout: current rows, past states, differences, lives, joins and changes."""
