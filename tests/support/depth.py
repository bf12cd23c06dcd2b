"""The number of examples of a law: `fast` during work, `gate` before a change lands, `laws` before a release.

`BACKSTORY_DEPTH` names the depth. The meaning of a test is the same at each depth, but more examples may find
more faults.
"""

import os

DEPTHS = ("fast", "gate", "laws")
DEPTH = os.environ.get("BACKSTORY_DEPTH", "fast")
assert DEPTH in DEPTHS, f"BACKSTORY_DEPTH={DEPTH}: choose one of {', '.join(DEPTHS)}"
# The number of random deliveries for each property.
EXAMPLES = {"fast": 15, "gate": 15, "laws": 600}


def deep(laws: int, gate: int) -> int:
    """The count for the depth. During work it is the count of the gate."""
    return laws if DEPTH == "laws" else gate
