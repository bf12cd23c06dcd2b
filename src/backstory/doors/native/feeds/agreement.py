"""The agreement between a feed and its table: columns, order, versions, meaning of rows, and plan settings.

The table stores the conditions for deletes, the marks of unmodified cells, and the columns that are not
stored. Otherwise a later delivery without these options would store deletes as updates, and NULL for
unmodified values (V13, V49, V60). A copy that renames columns renames them in these options.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final

import pyarrow as pa
from attrs import evolve
from pyspark.sql.types import ArrayType, NullType, StringType, StructType

from backstory.doors.native.evolution import (
    EvolvedShape,
    data_column_ids,
    delivered_columns,
    evolve_shape,
    new_table,
)
from backstory.doors.native.feeds import events
from backstory.doors.native.feeds.expressions import (
    compute_by_spark,
    lacking_column,
    local_computation,
    plain_column,
)
from backstory.doors.native.feeds.logs import LogProgress, refuse_another_log, stored_log
from backstory.doors.native.instants import FeedMemory, feed_memory, interval_micros
from backstory.doors.native.options import ApplyRequest, Expression
from backstory.doors.native.settings import TableSettings, agree_settings, refuse_unknown, stored_settings
from backstory.doors.native.sources import SourceRows
from backstory.errors import Refused, bad_option
from backstory.formats.rows import column_of_kept
from backstory.model.layout import MEMORY
from backstory.model.table import Shape, other_spelling, spelling_hint
from backstory.model.types import ColumnType, Kind
from backstory.model.versions_layout import ORDERED_BY
from backstory.stores.iceberg.conditions import has_no_values
from backstory.stores.iceberg.frames import keeps_row_ids
from backstory.stores.iceberg.literals import micros_of, quote
from backstory.stores.iceberg.schema import column_type
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.strategies.feeds.terms import FeedTerms

FEED: Final = "backstory.feed"
CONDITIONS: Final = ("apply_as_deletes", "apply_as_truncates")
# The options that a table stores, by the names under which it stores them.
_OPTIONS: Final = {
    **{name: name for name in (*CONDITIONS, "columns_to_update", "unmodified", "drop")},
    "ignore_nulls": "ignore_null_updates",
}
OWN_PREFIX: Final = "backstory: "  # no source has columns with this prefix
# A delivery has at most one of these options (V50).
_EITHER: Final = frozenset(["ignore_nulls", "columns_to_update"])
# A string, or a name that is not a struct field, a function, or the prefix of a literal (date '2026-01-01').
_NAMES: Final = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(?<![\w.`])(?:`(?P<quoted>[^`]+)`|(?P<bare>[^\W\d]\w*)(?!\w|\s*[('"]))"""
)
_BARE: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_TEXT: Final = re.compile(r"'(?:[^'\\]|\\.)*'")
_WORD: Final = re.compile(r"`([^`]+)`|(\w+)")


def gather_feed(
    store: IcebergStore, table: IcebergTable | None, source: SourceRows, request: ApplyRequest, *, zoned: bool
) -> "FeedInputs":
    """A feed with the columns, settings and order on which it and its table agree.

    If `zoned` is true, the source's times without a zone are in UTC. Raises Refused and UsageError for
    contradictions.
    """
    properties = {} if table is None else table.properties
    _refuse_missing(request, source.fields)
    refuse_another_log(properties, request)
    texts = events.agree_expressions(properties, request)
    expressions = texts if request.sequence_by is None else request.sequence_by
    ordering = _ordering(source, expressions, properties, zoned=zoned, log=request.log is not None)
    events.refuse_other_types(properties, ordering)
    dropped = request.drop or ()
    stored_fields = [  # the columns of the source that are stored in records (V49)
        field for field in source.fields if field.name not in dropped and column_of_kept(field.name) is None
    ]
    stored_columns, empty = delivered_columns(StructType(stored_fields))
    plain = frozenset(
        column.name
        for column in stored_columns
        if any(plain_column(one, [column.name]) for one in ordering.expressions) and column.name not in empty
    )
    if table is None:
        shape = new_table(request.into, stored_columns, empty, request)
        plain -= set(shape.shape.key)
        settings = _with_ignored(agree_settings(None, request), plain)
    else:
        shape = evolve_shape(
            table.shape, stored_columns, empty, request, partial(has_no_values, store, table)
        )
        settings = _agree_table_settings(table, request, plain, shape)
    refuse_unknown(settings, [column.name for column in shape.shape.user_columns], shape.shape.key)
    shape = replace(shape, shape=_with_sequence_memory(shape.shape, ordering))
    computed = {
        events.ORDER.format(number): _row_expression(expression)
        for number, expression in enumerate(expressions)
    }
    conditions = {events.DELETES: request.apply_as_deletes, events.TRUNCATES: request.apply_as_truncates}
    computed |= {
        name: _condition(source, condition) for name, condition in conditions.items() if condition is not None
    }
    memory = feed_memory(store, table)
    return FeedInputs(store, table, source, request, shape, settings, ordering, computed, memory)


def _refuse_missing(request: ApplyRequest, fields: StructType) -> None:
    names = fields.names
    nulls, update = request.ignore_null_updates, request.columns_to_update
    columns_by_option: Mapping[str, Collection[str]] = {
        "drop": request.drop or (),
        "columns_to_update": () if update is None else (update,),
        "ignore_null_updates": nulls if isinstance(nulls, frozenset) else (),
    }
    for option, columns in columns_by_option.items():
        if lacking := sorted(set(columns) - set(names)):
            raise bad_option(
                f"`{option}=` names no column of the source: {', '.join(lacking)}.",
                f"{spelling_hint(lacking, names)}Its columns are {', '.join(names)}.",
            )
    if update is None:
        return
    type_ = fields[update].dataType
    element = type_.elementType if isinstance(type_, ArrayType) else None
    if not isinstance(type_, NullType) and not isinstance(element, StringType | NullType):
        raise bad_option(
            f"`columns_to_update=` names {update}, which is not an array of strings.",
            "Name the column that has the names of the columns that each row sets.",
        )


def _ordering(
    source: SourceRows,
    expressions: Sequence[Expression],
    properties: Mapping[str, str],
    *,
    zoned: bool,
    log: bool,
) -> events.Ordering:
    """The order of the changes.

    An expression gets the table's type if it is NULL in all rows. It also gets the table's type if one of the
    two types widens to the other, because both types have the same order. Rows with NULL are refused later,
    with their keys.
    """
    types = [_type_of(source, _row_expression(expression)) for expression in expressions]
    if types[0] is not None:
        local = events.local_times(expressions[0]) is not None
        events.refuse_no_instant(types[0], expressions[0], zoned=zoned or local)
    known = events.stored_types(properties) or [ColumnType(Kind.STRING)] * len(types)
    types = [
        type_ and (events.INSTANT if events.local_times(text) else type_)
        for type_, text in zip(types, expressions, strict=True)
    ]
    further = [
        stored_type if type_ is None or (properties and events.orders_alike(type_, stored_type)) else type_
        for type_, stored_type in zip(types[1:], known, strict=False)
    ]
    for expression, type_ in zip(expressions[1:], further, strict=True):
        if not type_.flat:
            nested = f"{expression} is nested, so it has no order."
            raise bad_option(nested, "Use its parts in `sequence_by=`.")
    return events.Ordering(tuple(map(str, expressions)), tuple(further), log)


def _row_expression(expression: Expression) -> Expression:
    """The expression to compute in each row.

    For local times, this is the clock time, which later becomes an instant.
    """
    local = events.local_times(expression)
    return expression if local is None else local.time


def _condition(source: SourceRows, expression: Expression) -> Expression:
    """The expression, as a condition. Raises UsageError if its type is not BOOLEAN."""
    type_ = _type_of(source, expression)
    if type_ not in {None, ColumnType(Kind.BOOLEAN)}:
        raise bad_option(
            f"{expression} has type {type_}, so it is not a condition.",
            f"Compare it with something, such as `{expression} = 1`.",
        )
    return expression


def _type_of(source: SourceRows, expression: Expression) -> ColumnType | None:
    """The type of an expression's values, or None if all values are NULL without a type.

    Raises UsageError for a column that the source lacks.
    """
    names = source.fields.names
    if lacking := lacking_column(expression, names):
        raise bad_option(
            f"The source has no column {lacking}, which the order of changes or a condition uses.",
            f"{spelling_hint([lacking], names)}Its columns are {', '.join(names)}."
            if names
            else "It names no columns; if it has no rows, deliver a CSV file with only a header.",
        )
    if (name := plain_column(expression, names)) is not None:
        type_ = source.fields[name].dataType
        return None if isinstance(type_, NullType) else column_type(type_)
    texts = [field.name for field in source.fields if isinstance(field.dataType, StringType)]
    if local_computation(expression, pa.schema([(name, pa.string()) for name in texts])) is not None:
        return ColumnType(Kind.BOOLEAN)
    rows = compute_by_spark(source.frame(), {events.ORDER.format(0): expression})
    type_ = rows.schema[events.ORDER.format(0)].dataType
    return None if isinstance(type_, NullType) else column_type(type_)


def _with_ignored(settings: TableSettings, plain: frozenset[str]) -> TableSettings:
    """The settings that ignore columns of the order, unless they are tracked or overwritten (V49)."""
    if settings.track is not None or not plain:
        return settings
    return replace(
        settings, ignore=(settings.ignore or frozenset()) | (plain - (settings.overwrite or frozenset()))
    )


def _agree_table_settings(
    table: IcebergTable, request: ApplyRequest, plain: frozenset[str], shape: EvolvedShape
) -> TableSettings:
    """The table's settings. New columns are ignored if they order the changes or the request ignores them."""
    stored = stored_settings(table.properties)
    ignored = (plain | (request.ignore or frozenset())) & shape.added
    if request.ignore is not None:
        ignored_before = (request.ignore - ignored) | (plain & (stored.ignore or frozenset()))
        request = evolve(request, ignore=[*ignored_before] if ignored_before or stored.ignore else None)
    return _with_ignored(agree_settings(stored, request), ignored)


def _with_sequence_memory(shape: Shape, ordering: events.Ordering) -> Shape:
    """The shape, with a field in which rows store the further values of the order."""
    memory = shape.column(MEMORY)
    assert memory is not None
    parts = tuple(dict.fromkeys([*memory.type.parts, *ordering.memory_part]))
    grown = replace(memory, type=replace(memory.type, parts=parts))
    return replace(shape, columns=tuple(grown if col is memory else col for col in shape.columns))


def with_stored_meaning(
    request: ApplyRequest, properties: Mapping[str, str], names: Sequence[str]
) -> ApplyRequest:
    """The request, with the table's options in place of missing options.

    `names` are the delivery's columns. Stored options for other columns do not apply. Messages in an envelope
    define their own meaning. Raises Refused for a column that differs from an option's only in case.
    """
    if request.is_unwrapped:
        return request
    stored = _stored_options(properties, _request_options(request))
    options = {name: _option_of_delivery(name, value, names) for name, value in stored.items()}
    return evolve(
        request, **{_OPTIONS.get(name, name): value for name, value in options.items() if value is not None}
    )


def with_stored_envelope(request: ApplyRequest, properties: Mapping[str, str]) -> ApplyRequest:
    """The request with the table's envelope, and with its stored options for messages."""
    stored = json.loads(properties.get(FEED, "{}"))
    envelope = stored.get("envelope")
    if envelope is None or request.envelope not in {None, envelope}:
        return request
    drop = stored.get("drop") or None if request.drop is None else [*request.drop]
    return evolve(
        request, envelope=envelope, unmodified=request.unmodified or stored.get("unmodified"), drop=drop
    )


def unmodified_text(request: ApplyRequest, table: IcebergTable | None) -> str | None:
    """The string in cells that leave their column unmodified, or None.

    It is always None for messages in an envelope.
    """
    if request.envelope is not None:
        return None
    return with_stored_meaning(request, {} if table is None else table.properties, ()).unmodified


def meaning_property(request: ApplyRequest, properties: Mapping[str, str]) -> dict[str, str]:
    """The table property with the options that apply from now on. Requested options replace stored ones.

    Expressions given as Spark columns have no text form, so they are not stored.
    """
    if request.is_unwrapped:  # the envelope, its placeholder, and columns that are not stored
        own = f"{request.envelope}: "
        drop = sorted(name for name in request.drop or () if not name.startswith((own, OWN_PREFIX)))
        values = {"envelope": request.envelope, "unmodified": request.unmodified, "drop": drop or None}
        texts = {name: value for name, value in values.items() if value is not None}
    else:
        options = _request_options(request)
        texts = {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in options.items()
            if name not in CONDITIONS or isinstance(value, str)
        }
        if not texts:
            return {}
        texts = {**_stored_options(properties, options), **texts}
    return {FEED: json.dumps(texts, ensure_ascii=False, sort_keys=True)}


def _request_options(request: ApplyRequest) -> dict[str, Any]:
    values = {name: getattr(request, option) for name, option in _OPTIONS.items()}
    return {name: value for name, value in values.items() if value is not None}


def _stored_options(properties: Mapping[str, str], options: Collection[str]) -> dict[str, Any]:
    """The table's options, except requested options and options that contradict them."""
    left_out = {*options, *(_EITHER if _EITHER & set(options) else ())}
    stored = json.loads(properties.get(FEED, "{}"))
    return {name: value for name, value in stored.items() if name not in left_out}


def _option_of_delivery(name: str, value: Any, names: Sequence[str]) -> Any:
    """The value of a stored option for a delivery with these columns, or None if it does not apply.

    Raises Refused if it does not apply because of a column's case.
    """
    if name in CONDITIONS:
        words = {quoted or bare for quoted, bare in _WORD.findall(_TEXT.sub("", value))}
        if words & set(names):  # if it lacks another column of the condition, Spark refuses the condition
            return value
        columns = (match["quoted"] or match["bare"] for match in _NAMES.finditer(value))
        _refuse_other_case(name, filter(None, columns), names)
        return None
    if name == "columns_to_update":
        _refuse_other_case(name, [value], names)
        return value if value in names else None
    if not isinstance(value, list):
        return value
    _refuse_other_case(name, value, names)
    return frozenset(value) & set(names)


def _refuse_other_case(name: str, columns: Iterable[str], names: Sequence[str]) -> None:
    """Raise Refused if a stored option names a column that the delivery has in another case only.

    Without the option, deletes would be stored as updates, and dropped columns would be stored.
    """
    option = _OPTIONS.get(name, name)
    for column in columns:
        if column not in names and (other := other_spelling(column, names)) is not None:
            raise Refused(
                "other-case",
                f"The delivery has column {other}, and the table's `{option}=` names {column}: the names "
                "differ only in case.",
                f"Nothing was written; call it {column} in the delivery, or give `{option}=` again.",
                [other],
            )


@dataclass(frozen=True)
class FeedInputs:
    """A feed and its table, with the shape and settings on which they agree.

    `evolved` is the table's shape with the feed's columns. `computed` maps names of extra columns to
    expressions. The expressions of the order are the first entries.
    """

    store: IcebergStore
    table: IcebergTable | None
    source: SourceRows
    request: ApplyRequest
    evolved: EvolvedShape
    settings: TableSettings
    ordering: events.Ordering
    computed: Mapping[str, Expression]
    memory: FeedMemory

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns."""
        return self.evolved.shape.key

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The field ids of the columns outside the key."""
        return data_column_ids(self.table, self.evolved)

    def event_mapping(self, *, counted: bool) -> events.EventMapping:
        """The mapping of the source's rows to events.

        If `counted` is true, errors contain the row's number in the source.
        """
        request, evolved = self.request, self.evolved
        names = {column.name for column in evolved.delivered}
        delivered = tuple(column for column in evolved.shape.user_columns if column.name in names)
        images = self.source.images
        return events.EventMapping(
            delivered,
            self.key,
            self.numbers,
            self.ordering,
            events.UnmodifiedCells(
                request.ignore_null_updates or False, request.unmodified, request.columns_to_update
            ),
            counted,
            tuple(column for column in delivered if column.name in images and column.name not in self.key),
        )

    @property
    def stored_log(self) -> LogProgress | None:
        """The progress of the table's log, or None if there is no table or no log."""
        return None if self.table is None else stored_log(self.table.properties)

    def terms(self, last: int | None, log: LogProgress | None = None) -> FeedTerms:
        """The settings of the plan.

        `last` is the time of the last event, and `log` is the progress after the feed.
        """
        shape, settings = self.evolved.shape, self.settings
        users = list(self.numbers)
        settled = interval_micros(self.memory.settled)
        if log is not None and log.settles is not None:
            settled = None, max([log.settles, *settled[1:]])
        return FeedTerms(
            columns=shape.columns,
            key=shape.key,
            tracked=tuple(name for name in users if settings.tracks(name)),
            recorded=micros_of(self.memory.recorded),
            numbers=self.numbers,
            overwritten=tuple(name for name in users if settings.overwrites(name)),
            sequence=tuple(name for _, part in self.ordering.memory_part for name, _ in part.parts),
            settled=settled,
            drops=self.request.late == "drop",
            window=_window(self.request, last),
            all_keys=self.request.all_keys,
            ids=self.table is not None and keeps_row_ids(self.table),
            log=self.ordering.log,
            former=None if log is None else log.former_logs,
        )


def _window(request: ApplyRequest, last: int | None) -> tuple[int, int] | None:
    """The restated window, or None if nothing is restated.

    By default, the window ends just after the last event (V86).
    """
    if request.restate_from is None:
        return None
    start = micros_of(request.restate_from)
    if request.restate_until is not None:
        return start, micros_of(request.restate_until)
    return start, max(start, start if last is None else last) + 1


def renamed_options(properties: Mapping[str, str], evolved: EvolvedShape) -> dict[str, str]:
    """The properties with options of feeds that change because columns are renamed.

    A column that was added by mistake and set aside keeps its name in the options. Columns that feeds drop
    are not columns of the table, so they keep their names too.
    """
    names = {old: new for old, new in evolved.renamed.items() if new not in evolved.mistakes}
    if not names:
        return {}
    changed = {}
    if (text := properties.get(FEED)) is not None:
        options = {name: _renamed_option(name, value, names) for name, value in json.loads(text).items()}
        changed[FEED] = json.dumps(options, ensure_ascii=False, sort_keys=True)
    if (text := properties.get(ORDERED_BY)) is not None:
        order = [
            {**entry, "expression": rename_in_text(entry["expression"], names)} for entry in json.loads(text)
        ]
        changed[ORDERED_BY] = json.dumps(order, ensure_ascii=False)
    return {name: text for name, text in changed.items() if text != properties[name]}


def refuse_retyped_order(properties: Mapping[str, str], evolved: EvolvedShape) -> None:
    """Raise Refused if a column that orders the changes of feeds gets a type with another order.

    The types of an order never change (V13), so the table would refuse every later feed. The first expression
    of an order is a time, so its column may change its type.
    """
    types = {column.name: column.type for column in evolved.shape.user_columns}
    further = zip(
        (events.stored_expressions(properties) or ())[1:], events.stored_types(properties), strict=True
    )
    for expression, old in further:
        name = plain_column(rename_in_text(expression, evolved.renamed), [*types])
        if name is not None and not events.orders_alike(old, types[name]):
            raise Refused(
                "type-changed",
                f"Column {name} orders the changes of feeds as {old}, so it cannot become {types[name]}.",
                f"Nothing was written; keep its type, and cast it to {old} at the source, or use another "
                "table.",
                [name],
            )


def _renamed_option(name: str, value: Any, names: Mapping[str, str]) -> Any:
    if name in CONDITIONS:
        return rename_in_text(value, names)
    if name == "columns_to_update":
        return names.get(value, value)
    if name == "ignore_nulls" and isinstance(value, list):
        return sorted(names.get(column, column) for column in value)
    return value


def rename_in_text(expression: str, names: Mapping[str, str]) -> str:
    """A SQL expression with the new names of columns."""

    def rename(match: re.Match[str]) -> str:
        new = names.get(match["quoted"] or match["bare"] or "")
        if new is None:
            return match[0]
        return new if _BARE.fullmatch(new) else quote(new)

    return _NAMES.sub(rename, expression)
