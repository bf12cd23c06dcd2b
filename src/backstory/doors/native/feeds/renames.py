"""The columns of a copy and the options that a table stores for its feeds: new names, and types that stay.

A copy renames columns, and a later feed then has the new names. Options with the old names would order the
changes by a missing column. They would store deletes as updates, and NULL for unmodified values.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from backstory.doors.native.evolution import EvolvedShape
from backstory.doors.native.feeds.agreement import CONDITIONS, FEED
from backstory.doors.native.feeds.events import orders_alike, stored_expressions, stored_types
from backstory.doors.native.feeds.expressions import plain_column
from backstory.errors import Refused
from backstory.model.versions_layout import ORDERED_BY
from backstory.stores.iceberg.literals import quote

# A string, or a name that is no field of a struct, no function and no prefix of a literal: date '2026-01-01'.
_PARTS: Final = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(?<![\w.`])(?:`(?P<quoted>[^`]+)`|(?P<bare>[^\W\d]\w*)(?!\w|\s*[('"]))"""
)
_BARE: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def renamed_options(properties: Mapping[str, str], evolved: EvolvedShape) -> dict[str, str]:
    """The properties with the options of feeds, if columns have new names.

    A column that was added by mistake and set aside keeps its name in the options. Columns that feeds drop
    are not columns of the table, so they keep their names too.
    """
    names = {old: new for old, new in evolved.renamed.items() if new not in evolved.mistakes}
    if not names:
        return {}
    changed = {}
    if (text := properties.get(FEED)) is not None:
        options = {name: _option(name, value, names) for name, value in json.loads(text).items()}
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
    of an order is a time, for which the column may have other types.
    """
    types = {column.name: column.type for column in evolved.shape.user_columns}
    further = zip((stored_expressions(properties) or ())[1:], stored_types(properties), strict=True)
    for expression, old in further:
        name = plain_column(rename_in_text(expression, evolved.renamed), [*types])
        if name is not None and not orders_alike(old, types[name]):
            raise Refused(
                "type-changed",
                f"Column {name} orders the changes of feeds as {old}, so it cannot become {types[name]}.",
                f"Nothing was written; keep its type, and cast it to {old} at the source, or use another "
                "table.",
                [name],
            )


def _option(name: str, value: Any, names: Mapping[str, str]) -> Any:
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

    return _PARTS.sub(rename, expression)
