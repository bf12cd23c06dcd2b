"""How often a law is tried: `fast` while one works, `gate` before a change lands, `laws` before a release.

`BACKSTORY_DEPTH` names the depth. The meaning is the same at each; what chance finds is not.
"""

import os

DEPTHS = ("fast", "gate", "laws")
DEPTH = os.environ.get("BACKSTORY_DEPTH", "fast")
assert DEPTH in DEPTHS, f"BACKSTORY_DEPTH={DEPTH}: choose one of {', '.join(DEPTHS)}"
# How many random deliveries a property is tried on.
EXAMPLES = {"fast": 15, "gate": 25, "laws": 600}


def deep(laws: int, gate: int) -> int:
    """The count that the depth asks for; while one works, that of the gate."""
    return laws if DEPTH == "laws" else gate
