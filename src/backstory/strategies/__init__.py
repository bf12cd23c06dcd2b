"""The meaning: each way in which a delivery changes a table, as a rule and as a plan.

`rule.py` is the specification in plain Python, slow and obvious. `plan.py` is the same on Arrow
tables: the driver runs it on a small slice of a table. The rule is the oracle of the plan.
"""
