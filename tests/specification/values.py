"""The equality of rows (native.md V16)."""

from collections.abc import Iterable, Mapping
from typing import Any

from backstory.model.values import comparison_key


def equal_in(names: Iterable[str], one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rows have the same values in these columns. A column that a row lacks is NULL."""
    return all(comparison_key(one.get(name)) == comparison_key(other.get(name)) for name in names)
