"""Statements of a life as text: `value[from,to) known [from,to)`, with days as numbers and no end as empty."""

import re
from datetime import UTC, datetime, timedelta

ROW = r"(.*?)\[([\d.]*),([\d.]*)\)(?: known \[([\d.]*),([\d.]*)\))?"
ZERO = datetime(2024, 1, 1, tzinfo=UTC)
NOW = ZERO + timedelta(days=100)
# A correction (native.md E13): it was known at 2 that b began at 20, and at 3 that c was before b.
CORRECTED = """
a[10,) known [1,2)
a[10,20) known [2,3)
a[10,15) known [3,)
c[15,20) known [3,)
b[20,) known [2,)
"""


def day(text):
    return ZERO + timedelta(days=float(text)) if text else None


def statements_of(text):
    """The statements of a text. A statement may have no known times."""
    statements = []
    for line in text.strip("\n").split("\n"):
        value, *times = re.fullmatch(ROW, line, re.DOTALL).groups()
        names = ("valid_from", "valid_to", "known_from", "known_to")
        statements.append({"k": "k", "v": value, "same": 1} | dict(zip(names, map(day, times), strict=True)))
    return statements
