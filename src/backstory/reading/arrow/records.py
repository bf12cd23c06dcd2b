"""The rows of one record."""

import numpy as np
import pyarrow as pa

from backstory.model.schema import Shape
from backstory.model.values import alike
from backstory.reading.keys import shown_key_of
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.values import booleans


def is_record(users: pa.Table, shape: Shape, key: object) -> pa.Array:
    """Whether each row is of the record; UsageError for what is no key of the table."""
    found = np.ones(users.num_rows, bool)
    for name, value in shown_key_of(shape, key).items():
        if name not in users.column_names or pa.types.is_fixed_size_binary(users.schema.field(name).type):
            raise Unreadable("a key that is not read here")
        wanted = alike(value)
        found &= np.array([alike(each) == wanted for each in users[name].to_pylist()], bool)
    return booleans(found)
