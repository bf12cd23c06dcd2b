"""Measurements: speed against peers and the floor, right answers, a year of days, growth."""
