"""What a feed and its table agree on: columns, the order of changes, what makes versions (V13, V60)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from backstory.doors.native.columns import delivered_columns
from backstory.doors.native.evolution import Evolved, evolved, new_table
from backstory.doors.native.feeds.events import DELETES, ORDER, TRUNCATES
from backstory.doors.native.feeds.expressions import (
    computed_by_spark,
    computed_here,
    lacking_column,
    plain_column,
)
from backstory.doors.native.feeds.instants import INSTANT, refuse_no_instant
from backstory.doors.native.feeds.local_times import local_times
from backstory.doors.native.feeds.logs import refuse_another_log
from backstory.doors.native.feeds.options import Expression, FeedRequest
from backstory.doors.native.feeds.ordering import (
    Ordering,
    chosen_expressions,
    ordering_of,
    refuse_other_types,
    stored_types,
)
from backstory.doors.native.request import bad_option
from backstory.doors.native.settings import TableSettings, agreed, refuse_unknown, settings_of
from backstory.doors.native.source import Source
from backstory.formats.kept_cells import kept_column
from backstory.formats.rows import arrow_type
from backstory.model.layout import MEMORY
from backstory.model.schema import Shape
from backstory.model.spelling import spelling_hint
from backstory.model.table import TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.iceberg.column_values import has_no_values
from backstory.stores.iceberg.spark_types import column_type
from backstory.stores.iceberg.store import Store, StoredTable

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


@dataclass(frozen=True, slots=True)
class Agreement:
    """The table's shape with the feed's columns in it, its settings, and what is computed of each row.

    `computed` are the expressions by the names of their columns, the order's first.
    """

    evolved: Evolved
    settings: TableSettings
    ordering: Ordering
    computed: Mapping[str, Expression]


def agree(
    store: Store,
    table: StoredTable | None,
    name: TableName,
    source: Source,
    request: FeedRequest,
    *,
    zoned: bool,
) -> Agreement:
    """What the feed makes of the table's columns and settings; Refused and UsageError for what contradicts.

    `zoned`: times of the source without a zone are in UTC.
    """
    properties = {} if table is None else table.properties
    _refuse_missing(request, source.fields)
    refuse_another_log(properties, request)
    expressions = _expressions(properties, request)
    ordering = _ordering(source, expressions, properties, zoned=zoned, log=request.log is not None)
    refuse_other_types(properties, ordering)
    kept, empty = delivered_columns(_kept_fields(source, request))
    plain = frozenset(
        each.name
        for each in kept
        if any(plain_column(one, [each.name]) for one in ordering.expressions) and each.name not in empty
    )
    if table is None:
        shape = new_table(name, kept, empty, request)
        plain -= set(shape.shape.key)
        settings = _with_ignored(agreed(None, request), plain)
    else:
        shape = evolved(table.shape, kept, empty, request, partial(has_no_values, store, table))
        settings = _agreed_settings(table, request, plain, shape)
    refuse_unknown(settings, [each.name for each in shape.shape.user_columns], shape.shape.key)
    shape = replace(shape, shape=_remembering(shape.shape, ordering))
    computed = {ORDER.format(number): _computed(each) for number, each in enumerate(expressions)}
    conditions = {DELETES: request.apply_as_deletes, TRUNCATES: request.apply_as_truncates}
    computed |= {name: _condition(source, each) for name, each in conditions.items() if each is not None}
    return Agreement(shape, settings, ordering, computed)


def _kept_fields(source: Source, request: FeedRequest) -> "StructType":
    """The columns of the source that become columns of records (V49)."""
    from pyspark.sql.types import StructType

    dropped = request.drop or ()
    return StructType(
        [each for each in source.fields if each.name not in dropped and kept_column(each.name) is None]
    )


def _refuse_missing(request: FeedRequest, fields: "StructType") -> None:
    names = fields.names
    some = {"drop": request.drop or (), "columns_to_update": {request.columns_to_update} - {None}}
    if isinstance(request.ignore_nulls, frozenset):
        some["ignore_null_updates"] = request.ignore_nulls
    for option, asked in some.items():
        if lacking := sorted(set(map(str, asked)) - set(names)):
            raise bad_option(
                f"`{option}=` names no column of the source: {', '.join(lacking)}.",
                f"{spelling_hint(lacking, names)}Its columns are {', '.join(names)}.",
            )
    if (name := request.columns_to_update) is not None and not _is_list_of_names(fields[name].dataType):
        raise bad_option(
            f"`columns_to_update=` names {name}, which is not an array of texts.",
            "Name the column that has the names of the columns that each row sets.",
        )


def _is_list_of_names(type_: "DataType") -> bool:
    from pyspark.sql.types import ArrayType, NullType, StringType

    return isinstance(type_, NullType) or (
        isinstance(type_, ArrayType) and isinstance(type_.elementType, StringType | NullType)
    )


def _expressions(properties: Mapping[str, str], request: FeedRequest) -> tuple[Expression, ...]:
    """What orders the changes; those that are columns of Spark are computed as they are given."""
    texts = chosen_expressions(properties, request)
    return texts if request.sequence_by is None else request.sequence_by


def _ordering(
    source: Source,
    expressions: Sequence[Expression],
    properties: Mapping[str, str],
    *,
    zoned: bool,
    log: bool,
) -> Ordering:
    """The order; what no row has a value of has the type that the table knows, and is refused by its keys."""
    types = [_type_of(source, _computed(each)) for each in expressions]
    if types[0] is not None:
        local = local_times(expressions[0]) is not None
        refuse_no_instant(arrow_type(types[0]), expressions[0], zoned=zoned or local)
    known = stored_types(properties) or [ColumnType(Kind.STRING)] * len(types)
    types = [
        each and (INSTANT if local_times(text) else each)
        for each, text in zip(types, expressions, strict=True)
    ]
    further = [each or kept for each, kept in zip(types[1:], known, strict=False)]
    return ordering_of(tuple(map(str, expressions)), further, log=log)


def _computed(expression: Expression) -> Expression:
    """What is computed of each row: of local times those of the clock, which become instants afterwards."""
    local = local_times(expression)
    return expression if local is None else local.time


def _condition(source: Source, expression: Expression) -> Expression:
    """An expression that is true or not; UsageError for one of another type."""
    type_ = _type_of(source, expression)
    if type_ not in {None, ColumnType(Kind.BOOLEAN)}:
        raise bad_option(
            f"{expression} is of type {type_}, and not a condition.",
            f"Compare it with something, such as `{expression} = 1`.",
        )
    return expression


def _type_of(source: Source, expression: Expression) -> ColumnType | None:
    """The type of an expression's values; None where it has none, because no row has a value.

    Raises UsageError for a column that the source lacks.
    """
    from pyspark.sql.types import NullType, StringType

    if lacking := lacking_column(expression, source.fields.names):
        raise bad_option(
            f"The source has no column {lacking}, which orders changes or is their condition.",
            f"{spelling_hint([lacking], source.fields.names)}"
            f"Its columns are {', '.join(source.fields.names)}.",
        )
    if (name := plain_column(expression, source.fields.names)) is not None:
        type_ = source.fields[name].dataType
        return None if isinstance(type_, NullType) else column_type(type_)
    texts = [each.name for each in source.fields if isinstance(each.dataType, StringType)]
    if computed_here(expression, pa.schema([(name, pa.string()) for name in texts])) is not None:
        return ColumnType(Kind.BOOLEAN)
    rows = computed_by_spark(source.frame(), {ORDER.format(0): expression})
    type_ = rows.schema[ORDER.format(0)].dataType
    return None if isinstance(type_, NullType) else column_type(type_)


def _with_ignored(settings: TableSettings, plain: frozenset[str]) -> TableSettings:
    """The settings with columns that order changes ignored, unless they say otherwise (V49)."""
    if settings.track is not None or not plain:
        return settings
    return replace(
        settings, ignore=(settings.ignore or frozenset()) | (plain - (settings.overwrite or frozenset()))
    )


def _agreed_settings(
    table: StoredTable, request: FeedRequest, plain: frozenset[str], shape: Evolved
) -> TableSettings:
    """The table's settings; columns that come, and order the changes or are to be ignored, are ignored."""
    stored = settings_of(table.properties)
    ignored = (plain | (request.ignore or frozenset())) & shape.added
    if request.ignore is not None:
        kept = (request.ignore - ignored) | (plain & (stored.ignore or frozenset()))
        request = replace(request, ignore=kept if kept or stored.ignore else None)
    return _with_ignored(agreed(stored, request), ignored)


def _remembering(shape: Shape, ordering: Ordering) -> Shape:
    """The shape in which rows remember further values of the order."""
    if not ordering.memory_part:
        return shape
    return replace(
        shape,
        columns=tuple(
            replace(
                each,
                type=replace(
                    each.type, parts=tuple(dict.fromkeys([*each.type.parts, *ordering.memory_part]))
                ),
            )
            if each.name == MEMORY
            else each
            for each in shape.columns
        ),
    )
