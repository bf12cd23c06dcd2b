"""Append-only event logs: the outcomes of delivered rows, the plan, and the order of events."""
