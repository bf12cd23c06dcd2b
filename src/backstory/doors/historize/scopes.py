"""Conditions that users write, parsed and bound to the columns of a table (sections 3.7 and 1.1)."""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from backstory.doors.historize.columns import user_columns
from backstory.doors.historize.dialects.base import Dialect
from backstory.doors.historize.model import Dataset, HistState, IncrementPolicy, Model, SourceDataset
from backstory.errors import UsageError

CUTOFF = re.compile(r"\{\{\s*DELTA_CUTOFF\s*\}\}")
_CUTOFF_NAME = "backstory_delta_cutoff"
_FORBIDDEN = (exp.Subquery, exp.Select, exp.Exists, exp.Command, exp.AggFunc, exp.Window)


def source_of(model: Model, dataset: Dataset) -> SourceDataset | None:
    """The source dataset that scopes the delta."""
    return next((each for each in model.source_datasets if each.name == dataset.incremental_source), None)


def increment_scope(model: Model, dataset: Dataset, dialect: Dialect, alias: str) -> str | None:
    """The source's filter on the base's columns; None without a source or a filter.

    Identifiers are matched with letters and digits only, whatever their case, by the stage column
    that feeds each base column. `{{DELTA_CUTOFF}}` stays. UsageError for a name that feeds no column.
    """
    source = source_of(model, dataset)
    if source is None or not source.increment_filter:
        return None
    names = {_normal(column.input or column.name): column.name for column in user_columns(dataset)}
    text = CUTOFF.sub(_CUTOFF_NAME, source.increment_filter)
    return _bound(text, names, dialect, alias, f"the increment_filter of {source.name}")


def hist_scope(dataset: Dataset, hist: HistState, dialect: Dialect) -> str | None:
    """The scope of deletes of a partial snapshot, on the alias `h`; UsageError for what it cannot say."""
    scope = dataset.historization.delete_scope
    if scope is None:
        return None
    names = {_normal(column.name): column.name for column in hist.target_columns}
    return _bound(scope, names, dialect, "h", f"the delete_scope of {dataset.name}")


def _bound(text: str, names: Mapping[str, str], dialect: Dialect, alias: str, what: str) -> str:
    try:
        parsed = sqlglot.parse_one(text, read=dialect.SQLGLOT_NAME or None)
    except SqlglotError:
        raise UsageError("wrong-model", f"{what} is no condition: {text!r}.", "Mend the model.") from None
    if any(parsed.find(kind) for kind in _FORBIDDEN):
        raise UsageError("wrong-model", f"{what} is more than a condition on columns.", "Mend the model.")

    def column(name: str) -> exp.Expression:
        if name == _CUTOFF_NAME:
            return exp.column(_CUTOFF_NAME)
        if _normal(name) not in names:
            raise UsageError(
                "wrong-model", f"{what} names {name!r}, which is none of its columns.", "Mend the model."
            )
        return exp.column(exp.to_identifier(names[_normal(name)], quoted=True), table=alias)

    def bind(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Anonymous) and str(node.this).lower() == "col" and len(node.expressions) == 1:
            return column(node.expressions[0].name)
        return column(node.name) if isinstance(node, exp.Column) else node

    sql = str(parsed.transform(bind).sql(dialect=dialect.SQLGLOT_NAME or None))
    return sql.replace(_CUTOFF_NAME, "{{ DELTA_CUTOFF }}")


def _normal(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def delta_cutoff(model: Model, dataset: Dataset, now: datetime) -> datetime | None:
    """The instant that a delta reaches back to; None where no policy is active."""
    source = source_of(model, dataset)
    policies = source.increment_policies if source else ()
    active = (each for each in policies if each.active and each.environment == model.environment)
    policy = next(active, None)
    return None if policy is None else _back(now, policy)


def _back(now: datetime, policy: IncrementPolicy) -> datetime:
    length = policy.increment_interval_length
    if policy.increment_interval_unit == "day":
        return now - timedelta(days=length)
    months = length * (12 if policy.increment_interval_unit == "year" else 1)
    year, month = divmod(now.year * 12 + now.month - 1 - months, 12)
    for day in range(now.day, 27, -1):
        try:
            return now.replace(year=year, month=month + 1, day=day)
        except ValueError:
            continue
    return now.replace(year=year, month=month + 1)
