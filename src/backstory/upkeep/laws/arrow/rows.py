"""The rows of a small table record by record, for the rule of its laws."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from backstory.stores.metadata.values import values_of


def records(
    rows: pa.Table, identity: Sequence[str], told: Mapping[str, Sequence[Any]]
) -> Iterator[list[dict[str, Any]]]:
    """The rows of each record, which stand side by side: the values of columns by `told` name."""
    keys = list(zip(*(values_of(rows[name]) for name in identity), strict=True))
    found = (dict(zip(told, row, strict=True)) for row in zip(*told.values(), strict=True))
    for _, life in groupby(zip(keys, found, strict=True), key=lambda pair: pair[0]):
        yield [row for _, row in life]
