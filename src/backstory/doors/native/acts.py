"""What a plan in a task of Spark decides, as rows: places, rows to write, keys of samples, and counts."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from backstory.formats.delivered import arrow_schema, shaped
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.schema import Column
from backstory.stores.iceberg.literals import column

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

# What a row of a task's answer is: a stored row that goes, one that comes, a sample of a kind, or counts.
REMOVED, ADDED, SAMPLED, COUNTED = range(4)
# Columns of the table are numbered, so that no name of theirs meets one of these.
ACT: Final = "act tinyint, file bigint, position bigint, id bigint, told string"
GONE, COME = "rows that go", "rows that come"


class TaskPlan(Protocol):
    """A plan's places that go, rows that come, counts, and a few keys of each kind."""

    @property
    def gone(self) -> pa.Table:
        """Places of stored rows; files are numbers."""

    @property
    def come(self) -> pa.Table:
        """Rows to write, with the ids that they keep."""

    @property
    def counts(self) -> Mapping[str, int]:
        """What is counted."""

    @property
    def samples(self) -> Mapping[str, pa.Table]:
        """Keys by kind."""


def rows_of_acts(columns: Sequence[Column], plan: TaskPlan) -> pa.Table:
    """What a plan decides as rows: places, rows with their ids, keys of samples, and counts."""
    schema = arrow_schema({each.name: each.type for each in columns})
    numbered = {name: f"c{number}" for number, name in enumerate(schema.names)}
    counts = {**plan.counts, GONE: len(plan.gone), COME: len(plan.come)}
    come = shaped(plan.come, columns, ids=True)
    parts: list[dict[str, Any]] = [
        {"act": REMOVED, "file": plan.gone[FILE], "position": plan.gone[POSITION]},
        {"act": ADDED, "id": come[ROW_ID], **{numbered[name]: come[name] for name in schema.names}},
        *(
            {"act": SAMPLED, "told": kind, **{numbered[name]: rows[name] for name in rows.column_names}}
            for kind, rows in plan.samples.items()
        ),
        {"act": COUNTED, "told": pa.array([json.dumps(counts)])},
    ]
    places = dict.fromkeys(("file", "position", "id"), pa.int64())
    head = {"act": pa.int8(), **places, "told": pa.string()}
    types = {**head, **{numbered[each.name]: each.type for each in schema}}
    return pa.concat_tables(_as_act(part, types) for part in parts)


def _as_act(part: dict[str, Any], types: dict[str, pa.DataType]) -> pa.Table:
    """Rows with all columns; a value that is not one for each row is that of all."""
    count = next(len(each) for each in part.values() if isinstance(each, pa.ChunkedArray | pa.Array))
    values = []
    for name, type_ in types.items():
        value = part.get(name)
        if value is None:
            value = pa.nulls(count, type_)
        elif not isinstance(value, pa.ChunkedArray | pa.Array):
            value = pa.repeat(pa.scalar(value, type_), count)
        values.append(value.cast(type_))
    return pa.table(values, names=list(types))


def sum_counts(acts: "DataFrame") -> Counter[str]:
    """The counts of all tasks together."""
    counts: Counter[str] = Counter()
    for row in acts.where(column("act") == COUNTED).select("told").collect():
        counts.update(json.loads(row.told))
    return counts


def sampled_keys(acts: "DataFrame", columns: Sequence[Column], key: Sequence[str], kind: str) -> "DataFrame":
    """The keys of the samples of a kind."""
    samples = acts.where((column("act") == SAMPLED) & (column("told") == kind))
    return samples.select(*_by_name(key, columns))


def rows_to_write(acts: "DataFrame", columns: Sequence[Column], *, ids: bool) -> "DataFrame":
    """The rows that come, in the table's columns, with the ids that they keep."""
    kept = [column("id").alias(ROW_ID)] if ids else []
    return acts.where(column("act") == ADDED).select(
        *_by_name([each.name for each in columns], columns), *kept
    )


def places_that_go(acts: "DataFrame") -> "DataFrame":
    """The places of stored rows that go; files are numbers."""
    places = (column("file").alias(FILE), column("position").alias(POSITION))
    return acts.where(column("act") == REMOVED).select(*places)


def _by_name(names: Sequence[str], columns: Sequence[Column]) -> "list[SparkColumn]":
    numbers = {each.name: number for number, each in enumerate(columns)}
    return [column(f"c{numbers[name]}").alias(name) for name in names]
