"""Plans: for each kind of delivery, the rows that it removes and adds.

Plans work on Arrow tables, on the driver and in Spark's tasks. The tests compare them with a specification in
plain Python (`tests/specification`).
"""
