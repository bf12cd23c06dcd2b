"""A batch: rows after read and preprocess, in the columns of the dataset (sections 2.1, 2.8)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from backstory.doors.odf.columns import reserved
from backstory.doors.odf.dataset import Source
from backstory.doors.odf.delivered_rows import TakenColumns, taken_columns
from backstory.doors.odf.event_times import HINT, event_time, in_utc
from backstory.doors.odf.log_columns import LogColumns
from backstory.doors.odf.manifest.merge import ChangelogStream, Snapshot, UpsertStream
from backstory.doors.odf.merging import key_of
from backstory.doors.odf.schemas import Expected, conformed, storable
from backstory.engine.staging import ARRIVAL
from backstory.errors import Refused
from backstory.spark.versions import frame_fields, require_fields, try_cast
from backstory.stores.iceberg.literals import quoted
from backstory.strategies.events.sides import OP, PLACE, ROW, TIME
from backstory.strategies.frames import holds_map

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

# Counts of rows with an unreadable event time, whose operation is this number, and of NULLs by column.
UNREADABLE_TIME: Final = "unreadable event time"
UNREADABLE: Final = -1000
NULLS: Final = "null "


@dataclass(frozen=True, slots=True)
class DeliveredSide:
    """Delivered rows as a side of the plan.

    `data` are the data columns in the dataset's order; `timed` says that the source supplies the event
    time, `dated` that it is a day, `placed` that rows are numbered without gaps, and `known` that each
    column has a type of its values or of a declaration. `required` are data columns without NULL. `taken` are
    the columns of the batch that become those of the side as they are, None where Spark makes others.
    """

    rows: "DataFrame"
    data: "Sequence[StructField]"
    timed: bool
    dated: bool
    placed: bool
    known: bool
    required: Sequence[str]
    taken: TakenColumns | None = None


def batch(
    frame: "DataFrame",
    source: Source,
    columns: LogColumns,
    expected: Expected | None,
    *,
    inferred: bool,
) -> DeliveredSide:
    """The rows of a frame as those of a dataset; `expected` are its columns, None before the first rows.

    `inferred` says that nobody declared the columns: names of the system get a leading `_` then (D32).
    Raises Refused, with the columns' names and types, for what does not fit.
    """
    from pyspark.sql.functions import col, lit, struct, when
    from pyspark.sql.functions import monotonically_increasing_id as arrived

    read = frame.columns
    frame = _refused_or_renamed(frame, source, columns, inferred=inferred)
    found = {field.name: field for field in frame_fields(frame)}
    fields = dict(found)
    has_arrival = fields.pop(ARRIVAL, None) is not None
    op = _op(source, columns, fields)
    told = columns.vocab.operation_type_column
    system = (told if told in found.keys() - fields.keys() else None, columns.time)
    time, wanted = None, expected.dated if expected else None
    if columns.time in fields:
        type_ = fields.pop(columns.time).dataType
        time = event_time(columns.time, col(quoted(columns.time)), type_, inferred=inferred, dated=wanted)
    data, values = _conformed(fields, expected)
    _require_named(source, columns, [field.name for field in data], timed=time is not None)
    _require_comparable(source, data)
    dated = time.dated if time else bool(wanted)
    required = expected.required if expected else ()
    if time is not None and time.unreadable is not None:
        op = when(time.unreadable, lit(UNREADABLE)).otherwise(op)
    require_fields(len(data), "Rows" if time is None else "Rows with nothing but a time")
    own = (values.get(f.name, col(quoted(f.name))).cast(f.dataType).alias(f.name) for f in data)
    sides = {
        OP: op,
        TIME: time.value if time else lit(None).cast("date" if dated else "timestamp"),
        ROW: struct(*own),
        PLACE: col(quoted(ARRIVAL)) if has_arrival else arrived(),
    }
    rows = frame.select(*(value.alias(name) for name, value in sides.items()))
    known = expected is not None or not any(map(_is_void, frame.schema))
    taken = None
    if has_arrival and all(_is_void(fields[name]) for name in values):
        names = dict(zip(frame.columns, read, strict=True))
        taken = taken_columns(found, names, data, system, dated=dated)
    return DeliveredSide(rows, data, time is not None, dated, has_arrival, known, required, taken)


def _is_void(field: "StructField") -> bool:
    from pyspark.sql.types import NullType

    return isinstance(field.dataType, NullType)


def _conformed(
    fields: "Mapping[str, StructField]", expected: Expected | None
) -> "tuple[Sequence[StructField], Mapping[str, Column]]":
    from pyspark.sql.functions import col
    from pyspark.sql.types import TimestampNTZType

    naive = [name for name, field in fields.items() if isinstance(field.dataType, TimestampNTZType)]
    instants = {name: in_utc(col(quoted(name))) for name in naive}
    if expected is None:
        return [storable(each) for each in fields.values()], instants
    data, values = conformed(fields, expected)
    return data, instants | values


def refuse_failed(counts: Mapping[str, int], required: Sequence[str], time: str) -> None:
    """Raises Refused for the first check that rows failed; `time` names the event-time column."""
    if unreadable := counts.get(UNREADABLE_TIME):
        raise Refused(
            "bad-input-schema",
            f"{unreadable} values of the event-time column {time} are neither times nor four-digit years.",
            HINT,
            [time],
        )
    for name in required:
        if count := counts.get(f"{NULLS}{name}"):
            raise Refused(
                "null-in-required-column",
                f"Column `{name}` contains {count} null values while none were expected.",
                "Declare it as an Option, or fix the source.",
                [name],
            )


def _refused_or_renamed(
    frame: "DataFrame", source: Source, columns: LogColumns, *, inferred: bool
) -> "DataFrame":
    names = [name for name in frame.columns if name != ARRIVAL]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _bad(f"The batch has the column {twice[0]} twice.", "Name each column once.", twice)
    taken = sorted(reserved(columns.vocab, source.merge) & set(names))
    if taken and not inferred:
        raise _bad(
            f"The batch has the column {taken[0]}, which is a system column of the dataset.",
            "Rename it in preprocess, or rename the system column with setVocab.",
            taken,
        )
    for name in taken:
        if f"_{name}" in names:
            raise _bad(
                f"The batch has the columns {name} and _{name}; {name} is a system column of the dataset.",
                f"Rename {name} in preprocess, or rename the system column with setVocab.",
                [name],
            )
        frame = frame.withColumnRenamed(name, f"_{name}")
    return frame


def _op(source: Source, columns: LogColumns, fields: "dict[str, StructField]") -> "Column":
    """What each row does: told by the `op` column of upserts and changelogs, an addition elsewhere."""
    from pyspark.sql.functions import col, lit
    from pyspark.sql.types import IntegralType, StringType

    name = columns.vocab.operation_type_column
    if not isinstance(source.merge, UpsertStream | ChangelogStream) or name not in fields:
        if isinstance(source.merge, ChangelogStream):
            raise _bad(f"A changelog needs the column {name}.", f"It has {', '.join(fields)}.", [name])
        return lit(0)
    type_ = fields.pop(name).dataType
    if not isinstance(type_, IntegralType | StringType):
        raise _bad(f"The column {name} is of type {type_.simpleString()}.", "It must be an integer.", [name])
    return try_cast(col(quoted(name)), "int")


def _require_named(source: Source, columns: LogColumns, names: Sequence[str], *, timed: bool) -> None:
    """Key, compared and sequence columns must be there (D4, R33)."""
    known = {*names, columns.time} if timed else set(names)
    wanted = list(key_of(source.merge))
    if isinstance(source.merge, Snapshot):
        wanted += source.merge.compare_columns or ()
    if isinstance(source.merge, UpsertStream) and source.merge.sequence_column:
        wanted.append(source.merge.sequence_column)
    missing = [name for name in wanted if name not in known]
    if missing:
        raise Refused(
            "missing-column",
            f"The batch lacks the column {', '.join(missing)}, which merge needs.",
            f"It has {', '.join(sorted(known))}; names are compared exactly.",
            missing,
        )


def _require_comparable(source: Source, data: "Sequence[StructField]") -> None:
    """Spark compares no maps: there are none where rows are told from their repetitions (section 2.1)."""
    maps = [field.name for field in data if holds_map(field.dataType)] if key_of(source.merge) else []
    if maps:
        raise _bad(
            f"The column {maps[0]} holds a map, which cannot be compared.",
            "Convert it to text with to_json, or to a list with map_entries, in preprocess.",
            maps,
        )


def _bad(message: str, remedy: str, keys: Sequence[str]) -> Refused:
    return Refused("bad-input-schema", message, remedy, keys)
