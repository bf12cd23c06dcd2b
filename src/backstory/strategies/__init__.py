"""The meaning: a plan for each way in which a delivery changes a table.

`plan.py` works on Arrow tables, as the driver and Spark's tasks have them. The tests hold it to a reading of
the specification in plain Python (`tests/specification`).
"""
