"""Values of one column type as exactly the same values of another: none rounded, no digit of a text lost."""

import pyarrow as pa

from backstory.formats.rows import arrow_type
from backstory.formats.values.casts import DoesNotFit, cast
from backstory.formats.values.cells import UnreadableCell
from backstory.formats.values.exactly import becomes, exactly
from backstory.formats.values.fitting import all_are
from backstory.formats.values.texts import TextForms, parser
from backstory.model.types import TEXT_KINDS, ColumnType, Kind, are_related


def exact_cast(values: pa.Array, old: ColumnType, new: ColumnType) -> pa.Array:
    """The values as `arrow_type(new)`; DoesNotFit if one of them is another value then, or none.

    A number is the number that its text says: 0.1 is 0.1 as a float and as a decimal. A text is a number, a
    day or a time where a CSV file's cell would be one: `007` and a number of too many digits are none. Of a
    number the text is its shortest. Times without a zone are in UTC.
    """
    values = values.cast(arrow_type(old))
    if values.null_count == len(values):
        return pa.nulls(len(values), arrow_type(new))
    if not are_related(old, new):
        raise DoesNotFit
    if new.kind in TEXT_KINDS or Kind.BINARY in {old.kind, new.kind}:
        return cast(values, old, new)
    field = pa.field("", arrow_type(new))
    try:
        if old.kind not in TEXT_KINDS:
            if not becomes(values.type, field):
                raise DoesNotFit
            return exactly(values, field)
        if not all_are(values.drop_null(), field.type, TextForms()):
            raise DoesNotFit
        return parser(field, TextForms())(values)
    except (pa.ArrowInvalid, UnreadableCell):
        raise DoesNotFit from None


def misfits(values: pa.Array, old: ColumnType, new: ColumnType, most: int) -> list[int]:
    """The places of the first values, at most so many, that are none of the new type."""
    try:
        exact_cast(values, old, new)
    except DoesNotFit:
        if len(values) == 1:
            return [0]
        half = len(values) // 2
        found = misfits(values[:half], old, new, most)
        if len(found) < most:
            found += [half + place for place in misfits(values[half:], old, new, most - len(found))]
        return found
    return []
