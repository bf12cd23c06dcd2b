"""Keys as people write them."""

from collections.abc import Sequence


def told_key(names: Sequence[str], values: Sequence[object]) -> str:
    """A key as people write it: the value, or `a=1 b=2`; what is NULL is called so."""
    told = ["NULL" if value is None else str(value) for value in values]
    if len(names) == 1:
        return told[0]
    return " ".join(f"{name}={value}" for name, value in zip(names, told, strict=True))
