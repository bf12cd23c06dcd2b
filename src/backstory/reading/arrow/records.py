"""The rows of one record."""

from collections.abc import Callable

import pyarrow as pa

from backstory.model.schema import Shape
from backstory.model.values import alike
from backstory.reading.keys import shown_key_of
from backstory.stores.metadata.hidden import Unreadable


def is_record(users: pa.Table, shape: Shape, key: object) -> Callable[[int], bool]:
    """Whether the row at a place is of the record; UsageError for what is no key of the table."""
    pairs = []
    for name, value in shown_key_of(shape, key).items():
        if name not in users.column_names or pa.types.is_fixed_size_binary(users.schema.field(name).type):
            raise Unreadable("a key that is not read here")
        pairs.append((list(map(alike, users[name].to_pylist())), alike(value)))
    return lambda place: all(values[place] == wanted for values, wanted in pairs)
