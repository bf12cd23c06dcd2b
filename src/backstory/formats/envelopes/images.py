"""The images of records before and after their changes: what of them is a fact, and what is not known."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.envelopes.joint_types import as_type, joint_column
from backstory.formats.envelopes.structs import all_null
from backstory.formats.envelopes.unavailable import unavailable_cells

Columns = Mapping[str, pa.Array]


@dataclass(frozen=True, slots=True)
class Images:
    """The images of events by their columns; `key` are the columns of the messages' own keys."""

    is_upsert: pa.Array
    is_delete: pa.Array
    before: Columns
    after: Columns
    key: Columns

    def __len__(self) -> int:
        return len(self.is_upsert)

    def columns(self, column: str) -> list[pa.Array]:
        """Where there is a column of this name."""
        return [each[column] for each in (self.after, self.before, self.key) if column in each]


def record_rows(images: Images, key: Collection[str], name: str) -> pa.Table:
    """Values of upserts, the keys of deletes; Refused where images have types that contradict each other."""
    names = [*images.after, *images.before, *images.key]
    rows = {}
    for column in dict.fromkeys(names):
        type_ = joint_column(column, [each.type for each in images.columns(column)], name)
        nothing = pa.nulls(len(images), type_)
        after, before, own = (
            as_type(each[column], type_) if column in each else nothing
            for each in (images.after, images.before, images.key)
        )
        deleted = pc.coalesce(own, before) if column in key else nothing
        upserted = after if column in images.after else own
        rows[column] = pc.if_else(images.is_upsert, upserted, pc.if_else(images.is_delete, deleted, nothing))
    return pa.table(rows)


def unmodified_cells(
    images: Images, stated: Columns, key: Collection[str], columns: Sequence[str], unavailable: str
) -> pa.Table:
    """Which events leave which columns as they were; `stated` are those of which the messages say it."""
    nobody = pa.repeat(pa.scalar(False), len(images))
    flags = {}
    for column in columns:
        if column in key:
            continue
        cells = images.after.get(column)
        lacking = images.is_upsert if cells is None else unavailable_cells(cells, unavailable)
        flag = pc.and_(images.is_upsert, pc.or_(lacking, pc.fill_null(stated.get(column, nobody), False)))
        if flag.true_count:
            flags[column] = flag
    return pa.table(flags)


def before_images(
    images: Images, there: pa.Array, schema: pa.Schema, unavailable: str
) -> tuple[pa.Table | None, pa.Array]:
    """The images before the events, where they are `there` and wholly available; and where that is."""
    whole = pc.and_(there, pc.invert(all_null(images.before, len(images))))
    for cells in images.before.values():
        whole = pc.and_(whole, pc.invert(unavailable_cells(cells, unavailable)))
    if not whole.true_count:
        return None, whole
    typed = {each: as_type(cells, schema.field(each).type) for each, cells in images.before.items()}
    return pa.table({each: pc.if_else(whole, cells, None) for each, cells in typed.items()}), whole
