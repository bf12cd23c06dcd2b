"""When two values are one, in plain Python: what every oracle compares by (native.md V16)."""

import math
from collections.abc import Hashable, Mapping
from typing import Any


def alike(value: Any) -> Hashable:
    """What is equal for values that are one: NaN is NaN, 0.0 is -0.0, and maps have no order."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, Mapping):
        return frozenset((alike(name), alike(each)) for name, each in value.items())
    return tuple(map(alike, value)) if isinstance(value, list) else value
