"""Keys as people write them."""

from collections.abc import Sequence


def told_key(names: Sequence[str], values: Sequence[object]) -> str:
    """A key as people write it: the value, or `a=1 b=2`."""
    if len(names) == 1:
        return str(values[0])
    return " ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
