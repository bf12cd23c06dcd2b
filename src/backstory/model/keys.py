"""Keys as people write them."""

from collections.abc import Sequence


def key_text(names: Sequence[str], values: Sequence[object]) -> str:
    """A key as people write it: the value, or `a=1 b=2`; NULL is written NULL."""
    texts = ["NULL" if value is None else str(value) for value in values]
    if len(names) == 1:
        return texts[0]
    return " ".join(f"{name}={value}" for name, value in zip(names, texts, strict=True))
