"""A batch: preprocessed rows that are checked and converted to the dataset's columns (2.1, 2.8).

The event time is an instant, a day, or a calendar year (decisions O5 and O13). Columns that need no
conversion are taken from Arrow tables, without Spark.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type

from backstory.doors.odf.columns import arrow_schema, data_schema_of, reserved_names
from backstory.doors.odf.manifest.data_schema import DataSchema
from backstory.doors.odf.manifest.dataset import DatasetSource
from backstory.doors.odf.manifest.events import ChangelogStream, SnapshotMerge, UpsertStream, key_of
from backstory.doors.odf.registry import KnownDataset, LogColumns
from backstory.engine.staging import ARRIVAL, StagedRows, type_with_void
from backstory.errors import Refused
from backstory.model.types import fits, widens
from backstory.spark.versions import frame_fields, require_fields, try_cast
from backstory.stores.iceberg.literals import cast_as_shown, quote
from backstory.stores.iceberg.schema import column_type
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.stores.port import TableLike
from backstory.strategies.events.sides import OP, PLACE, TIME
from backstory.strategies.frames import holds_map, side_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ADD = "Add it to setDataSchema, or to the read schema, as an optional column and run `backstory add`."


@dataclass(frozen=True, slots=True)
class ExpectedColumns:
    """A dataset's data columns in order, the names of required columns, and whether event times are days."""

    fields: "Sequence[spark.StructField]"
    required: tuple[str, ...] = ()
    dated: bool | None = None


def expected_of(
    document: Mapping[str, Any] | None, system: Sequence[str], time: str
) -> ExpectedColumns | None:
    """The columns of a DataSchema document without system columns, or None if there is no document."""
    if document is None:
        return None
    schema = arrow_schema(DataSchema.model_validate(document))
    dated = pa.types.is_date(schema.field(time).type) if time in schema.names else None
    data = pa.schema([field for field in schema if field.name not in system])
    # Tables have no required fields within lists and structs.
    fields = [storable(field) for field in from_arrow_schema(data)]
    return ExpectedColumns(fields, tuple(field.name for field in data if not field.nullable), dated)


def expected_columns(dataset: KnownDataset[TableLike]) -> ExpectedColumns | None:
    """The columns that a batch of a dataset must have.

    Returns None before the first rows, unless the manifest sets the columns.
    """
    columns = dataset.columns
    expected = expected_of(dataset.schema, columns.system, columns.time)
    dated = dataset.is_dated
    return expected if expected is None or dated is None else replace(expected, dated=dated)


def document_of(
    fields: "Sequence[spark.StructField]", declared: DataSchema | None, time: str, *, dated: bool
) -> dict[str, Any]:
    """The DataSchema document of a dataset's first rows, with declared types if there are any."""
    declared_fields = {field.name: field for field in arrow_schema(declared)} if declared else {}
    built_fields = [
        declared_fields.get(f.name) or pa.field(f.name, to_arrow_type(f.dataType)) for f in fields
    ]
    when = pa.field(time, pa.date32() if dated else pa.timestamp("us", "UTC"))
    return data_schema_of(pa.schema([when, *built_fields]))


def storable(field: "spark.StructField") -> "spark.StructField":
    """The column with a table type.

    Small integers are widened; times without a zone become instants in UTC.
    """
    return spark.StructField(field.name, _storable(field.dataType, field.name), True)


def _storable(type_: "spark.DataType", name: str) -> "spark.DataType":  # noqa: PLR0911 - a branch for each type

    match type_:
        case spark.ByteType() | spark.ShortType():
            return spark.IntegerType()
        case spark.NullType() | spark.VarcharType() | spark.CharType():
            return spark.StringType()
        case spark.TimestampNTZType():
            return spark.TimestampType()
        case spark.ArrayType():
            return spark.ArrayType(_storable(type_.elementType, name), True)
        case spark.MapType():
            return spark.MapType(_storable(type_.keyType, name), _storable(type_.valueType, name), True)
        case spark.StructType():
            return spark.StructType([storable(field) for field in type_])
        case _ if type_.simpleString().startswith("interval"):
            raise Refused(
                "bad-input-schema",
                f"The column {name} is of type {type_.simpleString()}, which tables cannot hold.",
                "Convert it to a number or a string in preprocess.",
                [name],
            )
    return type_


def conform_columns(
    batch: "Mapping[str, spark.StructField]", expected: ExpectedColumns
) -> "tuple[list[spark.StructField], dict[str, Column]]":
    """The dataset's columns, and expressions for the batch's columns that need a conversion.

    Columns are matched by name, in any order. Raises Refused for a new, missing or retyped column.
    """
    known = {field.name: field for field in expected.fields}
    new = [name for name in batch if name not in known]
    if new:
        raise _incompatible(f"The batch has the column {new[0]}, which the dataset does not have.", ADD, new)
    missing = [name for name in known if name not in batch]
    if missing:
        raise _incompatible(
            f"The batch lacks the column {missing[0]} ({known[missing[0]].dataType.simpleString()}).",
            f"It has {', '.join(batch) or 'none'}; names are compared exactly.",
            missing,
        )
    values = {}
    for name, field in known.items():
        actual = storable(batch[name]).dataType
        if isinstance(batch[name].dataType, spark.NullType):
            values[name] = sf.lit(None)
        elif (partly_void := type_with_void(batch[name])) != batch[name].dataType:
            misfit = _wrong_type(name, partly_void, field.dataType)
            values[name] = _fill_voids(sf.col(quote(name)), partly_void, field.dataType, misfit)
        elif not _fits(actual, field.dataType):
            raise _wrong_type(name, actual, field.dataType)
        elif isinstance(actual, spark.FloatType) and actual != field.dataType:
            values[name] = cast_as_shown(sf.col(quote(name)), actual, field.dataType)
    return list(expected.fields), values


def _fill_voids(
    value: "Column", actual: "spark.DataType", expected: "spark.DataType", misfit: Refused
) -> "Column":
    """The value, with NULLs of the expected types for parts of void type.

    Raises `misfit` if another part does not fit into its expected type.
    """
    match actual, expected:
        case spark.NullType(), _:
            return sf.lit(None).cast(expected)
        case spark.ArrayType(), spark.ArrayType():
            return sf.transform(
                value, lambda item: _fill_voids(item, actual.elementType, expected.elementType, misfit)
            )
        case spark.MapType(), spark.MapType() if actual.keyType == expected.keyType:
            return sf.transform_values(
                value, lambda _, item: _fill_voids(item, actual.valueType, expected.valueType, misfit)
            )
        case spark.StructType(), spark.StructType() if actual.names == expected.names:
            parts = (
                _fill_voids(value[one.name], one.dataType, other.dataType, misfit).alias(other.name)
                for one, other in zip(actual, expected, strict=True)
            )
            return sf.when(value.isNotNull(), sf.struct(*parts))
    if not _fits(actual, expected):
        raise misfit
    return cast_as_shown(value, actual, expected)


def _fits(actual: "spark.DataType", expected: "spark.DataType") -> bool:
    """Whether every value of the first type fits into the second type."""
    return fits(column_type(actual), column_type(expected))


def _wrong_type(name: str, actual: "spark.DataType", expected: "spark.DataType") -> Refused:
    difference = f"expected {expected.simpleString()}, but found {actual.simpleString()}"
    remedy = "Cast it in preprocess, or fix the source."
    return _incompatible(f"The column {name} has the wrong type: {difference}.", remedy, [name])


_bad = partial(Refused, "bad-input-schema")
_incompatible = partial(Refused, "incompatible-schema")


YEAR: Final = r"^[1-9][0-9]{3}$"
CLOCK_TIME: Final = r"[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?"
RFC3339: Final = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}({CLOCK_TIME})?$"
ZONED: Final = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}{CLOCK_TIME}([Zz]|[+-][0-9]{{2}}:[0-9]{{2}})$"
# The years 0001 to 9999, counted from 1970-01-01. This is Python's range; instants beyond it are mistakes.
LAST_SECOND: Final = 253_402_300_799
INSTANTS: Final = (-62_135_596_800_000_000, LAST_SECOND * 1_000_000 + 999_999)
DAYS: Final = (-719_162, 2_932_896)
# Smaller numbers are more likely years, days or mistakes than UNIX seconds. Larger numbers are milliseconds.
SECONDS: Final = (100_000_000, LAST_SECOND)
HINT: Final = (
    "Convert it to a time in preprocess: make_date(year, 1, 1), timestamp_seconds(x), timestamp_millis(x), "
    "to_timestamp(x)."
)

# Rows with an unreadable event time have this number as their operation. The names are for counts of such
# rows, of NULLs, and of parts with times outside the years 0001 to 9999, or with text that is not UTF-8.
UNREADABLE_TIME: Final = "unreadable event time"
UNREADABLE: Final = -1000
NULLS: Final = "null "
BEYOND: Final = "beyond "


@dataclass(frozen=True, slots=True)
class EventTimeColumn:
    """The event time as a column, whether it is a day, and the condition for an unreadable event time."""

    value: "Column"
    dated: bool
    unreadable: "Column | None" = None


def event_time(
    name: str, column: "Column", type_: "spark.DataType", *, inferred: bool, dated: bool | None = None
) -> EventTimeColumn:
    """The event time that a column contains.

    `inferred` is true if the column's type was not declared. `dated` is true if the dataset's event times are
    days, or None if this is undecided. If the dataset has instants, an inferred day becomes its first
    instant. Raises Refused for a type that cannot represent a time (section 2.1, step 1). Also raises Refused
    if days are declared instead of instants, or vice versa.
    """
    time = _event_time(name, column, type_, inferred=inferred, dated=bool(dated))
    if dated is None or time.dated is dated:
        return time
    if time.dated and inferred:
        return _within_years(column, in_utc(column.cast("timestamp_ntz")))
    expected = "date" if dated else "timestamp"
    raise Refused(
        "incompatible-schema",
        f"The event-time column {name} has the wrong type: expected {expected}, but found "
        f"{type_.simpleString()}.",
        "Cast it in preprocess, or fix the source.",
        [name],
    )


def _event_time(
    name: str, column: "Column", type_: "spark.DataType", *, inferred: bool, dated: bool
) -> EventTimeColumn:
    match type_:
        case spark.DateType():
            return _within_years(column, column, dated=True)
        case spark.TimestampType():
            return _within_years(column, column)
        case spark.TimestampNTZType():
            return _within_years(column, in_utc(column))
        case spark.NullType():
            return EventTimeColumn(sf.lit(None).cast("date" if dated else "timestamp"), dated=dated)
        case spark.IntegralType():
            return _number(column, inferred=inferred)
        case spark.StringType():
            return _text(column, inferred=inferred)
        case _:
            raise Refused(
                "bad-input-schema",
                f"The event-time column {name} is of type {type_.simpleString()}, not a date or timestamp.",
                HINT,
                [name],
            )


def in_utc(naive: "Column") -> "Column":
    """Times without a zone as instants in UTC, regardless of the session's time zone."""
    return sf.concat(naive.cast("string"), sf.lit("Z")).cast("timestamp")


def _within_years(column: "Column", value: "Column", *, dated: bool = False) -> EventTimeColumn:
    """The event time `value`.

    It is unreadable unless the column's value is a time in the years 0001 to 9999.
    """
    good = sf.unix_date(value).between(*DAYS) if dated else sf.unix_micros(value).between(*INSTANTS)
    value = sf.when(good, value)
    return EventTimeColumn(value, dated, unreadable=column.isNotNull() & value.isNull())


def _year(column: "Column") -> "Column":
    one, none = sf.lit(1), sf.lit(0)
    return sf.make_timestamp_ltz(column.cast("int"), one, one, none, none, none, sf.lit("UTC"))


def _number(column: "Column", *, inferred: bool) -> EventTimeColumn:
    """An event time from numbers.

    A four-digit number is a year. A large number is UNIX seconds if the type was inferred.
    """
    year = column.between(1000, 9999)
    seconds = column.between(*SECONDS)
    value = sf.when(year, _year(sf.when(year, column)))
    if inferred:
        value = value.when(seconds, sf.timestamp_seconds(column))
    good = year | seconds if inferred else year
    return EventTimeColumn(value, dated=False, unreadable=column.isNotNull() & ~good)


def _text(column: "Column", *, inferred: bool) -> EventTimeColumn:
    """An event time from strings.

    A string of four digits is a year. A string in RFC 3339 is an instant if the type was inferred.
    """
    year = column.rlike(YEAR)
    value = sf.when(year, _year(sf.when(year, column)))
    if inferred:
        value = value.when(column.rlike(ZONED), try_cast(column, "timestamp"))
        value = value.when(column.rlike(RFC3339), in_utc(try_cast(column, "timestamp_ntz")))
    return _within_years(column, value)


def taken_columns(
    batch: "Mapping[str, spark.StructField]",
    names: Mapping[str, str],
    data: "Sequence[spark.StructField]",
    system: Sequence[str | None],
    *,
    dated: bool,
) -> dict[str, str] | None:
    """For columns of a side, the columns of the file to take unchanged, or None if Spark must convert some.

    A column of NULLs or, for `op`, of zeros is left out. `names` maps columns to their names in the file.
    `system` has the columns for `op` (None if each row is an addition) and for the event time.
    """
    op, time = (None if name is None else batch.get(name) for name in system)
    if op is not None and not isinstance(op.dataType, spark.ByteType | spark.ShortType | spark.IntegerType):
        return None
    void = {name for name, field in batch.items() if isinstance(field.dataType, spark.NullType)}
    if time is not None and time.name not in void:
        kind = spark.DateType if dated else spark.TimestampType
        if not isinstance(time.dataType, kind):
            return None
    types = [(batch[field.name].dataType, field.dataType) for field in data if field.name not in void]
    if not all(widens(column_type(actual), column_type(wanted)) for actual, wanted in types):
        return None
    taken = {name: field.name for name, field in ((OP, op), (TIME, time)) if field is not None}
    taken |= {field.name: field.name for field in data}
    return {name: names[column] for name, column in taken.items() if column not in void}


def side_tables(read: StagedRows, taken: Mapping[str, str], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows as tables of a side with this schema.

    Raises Unreadable for a damaged file and for an event time out of range. Spark then reports the error.
    """
    assert read.tables is not None
    wanted = {name: source for name, source in taken.items() if name in schema.names}
    first = 0
    try:
        for rows in read.tables(list(wanted.values())):
            size = len(rows)
            columns = {OP: np.zeros(size, np.int32), PLACE: np.arange(first, first + size)}
            columns |= {name: rows[source] for name, source in wanted.items()}
            values = [columns.get(field.name, pa.nulls(size, field.type)) for field in schema]
            side = pa.table(values, names=schema.names).cast(schema)
            if TIME in schema.names:
                _require_years(side[TIME])
            first += size
            yield side
    except (OSError, pa.ArrowException) as fault:
        raise Unreadable(str(fault)) from fault


def _require_years(times: pa.ChunkedArray) -> None:
    dated = pa.types.is_date32(times.type)
    first, last = DAYS if dated else INSTANTS
    for limit in pc.min_max(times).values():
        count = limit.cast(pa.int32() if dated else pa.int64()).as_py()
        if count is not None and not first <= count <= last:
            raise Unreadable("an event time out of range")


@dataclass(frozen=True, slots=True)
class DeliveredSide:
    """Delivered rows as a side of the plan.

    `data` are the data columns in the dataset's order, and `required` are the columns that must not contain
    NULL. `timed` is true if the source supplies the event time, and `dated` if the event time is a day.
    `placed` is true if rows are numbered without gaps. `known` is true if each column has a type from its
    values or a declaration. `taken` are the columns to take unchanged, or None if Spark must convert some
    columns.
    """

    rows: "DataFrame"
    data: "Sequence[spark.StructField]"
    timed: bool
    dated: bool
    placed: bool
    known: bool
    required: Sequence[str]
    taken: Mapping[str, str] | None = None


def delivered_side(
    frame: "DataFrame",
    source: DatasetSource,
    columns: LogColumns,
    expected: ExpectedColumns | None,
    *,
    inferred: bool,
) -> DeliveredSide:
    """Convert the rows of a frame to the dataset's columns.

    Before the first rows, no columns are `expected`. If `inferred` is set, no columns were declared, and
    columns named like system columns get a leading `_` (D32). Raises Refused, with names and types of
    columns, for columns that do not fit.
    """
    read_names = frame.columns
    frame = _rename_reserved(frame, source, columns, inferred=inferred)
    frame_columns = {field.name: field for field in frame_fields(frame)}
    fields = dict(frame_columns)
    has_arrival = fields.pop(ARRIVAL, None) is not None
    op = _op(source, columns, fields)
    op_name = columns.vocab.operation_type_column
    system = (op_name if op_name in frame_columns.keys() - fields.keys() else None, columns.time)
    time, wanted = None, expected.dated if expected else None
    if columns.time in fields:
        type_ = fields.pop(columns.time).dataType
        time = event_time(columns.time, sf.col(quote(columns.time)), type_, inferred=inferred, dated=wanted)
    naive = [name for name, field in fields.items() if isinstance(field.dataType, spark.TimestampNTZType)]
    values = {name: in_utc(sf.col(quote(name))) for name in naive}
    if expected is None:
        data = [storable(field) for field in fields.values()]
    else:
        data, converted = conform_columns(fields, expected)
        values |= converted
    _require_named(source, columns, [field.name for field in data], timed=time is not None)
    _require_comparable(source, data)
    dated = time.dated if time else bool(wanted)
    required = expected.required if expected else ()
    if time is not None and time.unreadable is not None:
        op = sf.when(time.unreadable, sf.lit(UNREADABLE)).otherwise(op)
    require_fields(len(data), "Rows" if time is None else "Rows with nothing but a time")
    side = side_columns(
        op,
        time.value if time else sf.lit(None).cast("date" if dated else "timestamp"),
        sf.col(quote(ARRIVAL)) if has_arrival else sf.monotonically_increasing_id(),
        (values.get(f.name, sf.col(quote(f.name))).cast(f.dataType) for f in data),
    )
    rows = frame.select(*side)
    known = expected is not None or not any(map(_is_void, frame.schema))
    taken = None
    if has_arrival and all(_is_void(fields[name]) for name in values):
        names = dict(zip(frame.columns, read_names, strict=True))
        taken = taken_columns(frame_columns, names, data, system, dated=dated)
    return DeliveredSide(rows, data, time is not None, dated, has_arrival, known, required, taken)


def _is_void(field: "spark.StructField") -> bool:
    return isinstance(field.dataType, spark.NullType)


def refuse_failed(counts: Mapping[str, int], required: Sequence[str], time: str) -> None:
    """Raise Refused for the first failed check of rows. `time` is the name of the event-time column."""
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
    if beyond := [name.removeprefix(BEYOND) for name in counts if name.startswith(BEYOND) and counts[name]]:
        message = f"The column {beyond[0]} has a time outside the years 1 to 9999, or text that is not UTF-8."
        raise Refused("unreadable-value", message, "Convert it in preprocess, or fix the source.", beyond)


def _rename_reserved(
    frame: "DataFrame", source: DatasetSource, columns: LogColumns, *, inferred: bool
) -> "DataFrame":
    names = [name for name in frame.columns if name != ARRIVAL]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise _bad(f"The batch has the column {repeated[0]} twice.", "Name each column once.", repeated)
    taken = sorted(reserved_names(columns.vocab, source.merge) & set(names))
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


def _op(source: DatasetSource, columns: LogColumns, fields: "dict[str, spark.StructField]") -> "Column":
    """The operation of each row: the `op` column of upserts and changelogs, or else an addition."""
    name = columns.vocab.operation_type_column
    if not isinstance(source.merge, UpsertStream | ChangelogStream) or name not in fields:
        if isinstance(source.merge, ChangelogStream):
            raise _bad(f"A changelog needs the column {name}.", f"It has {', '.join(fields)}.", [name])
        return sf.lit(0)
    type_ = fields.pop(name).dataType
    if not isinstance(type_, spark.IntegralType | spark.StringType):
        raise _bad(f"The column {name} is of type {type_.simpleString()}.", "It must be an integer.", [name])
    return try_cast(sf.col(quote(name)), "int")


def _require_named(source: DatasetSource, columns: LogColumns, names: Sequence[str], *, timed: bool) -> None:
    """Raise Refused if a key, compared or sequence column is missing (D4, R33)."""
    known = {*names, columns.time} if timed else set(names)
    wanted = list(key_of(source.merge))
    if isinstance(source.merge, SnapshotMerge):
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


def _require_comparable(source: DatasetSource, data: "Sequence[spark.StructField]") -> None:
    """Raise Refused for a map in a dataset with a key, because Spark cannot compare maps (section 2.1)."""
    maps = [field.name for field in data if holds_map(field.dataType)] if key_of(source.merge) else []
    if maps:
        raise _bad(
            f"The column {maps[0]} holds a map, which cannot be compared.",
            "Convert it to text with to_json, or to a list with map_entries, in preprocess.",
            maps,
        )
