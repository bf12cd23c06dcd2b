"""Conditions from a model, parsed and bound to the columns of a table (sections 3.7 and 1.1)."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from backstory.doors.historize.model import (
    HistState,
    IncrementPolicy,
    Model,
    ModelDataset,
    SourceDataset,
    user_columns,
)
from backstory.errors import UsageError
from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.statements import PLACEHOLDER

CUTOFF = re.compile(r"\{\{\s*DELTA_CUTOFF\s*\}\}")
_CUTOFF_NAME = "backstory_delta_cutoff"
_FORBIDDEN = (exp.Query, exp.Exists, exp.AggFunc, exp.Window, exp.Star, exp.Placeholder)


def source_of(model: Model, dataset: ModelDataset) -> SourceDataset | None:
    """The source dataset whose filter limits the delta."""
    return next((each for each in model.source_datasets if each.name == dataset.incremental_source), None)


def increment_scope(model: Model, dataset: ModelDataset, dialect: Dialect, alias: str) -> str | None:
    """The source's filter as a condition on the base's columns, or None if there is no source or filter.

    Identifiers are matched to the stage columns from which the base is loaded. Only letters and digits count,
    regardless of case. `{{DELTA_CUTOFF}}` stays in the condition. Raises UsageError for a name that matches
    no column.
    """
    source = source_of(model, dataset)
    if source is None or not source.increment_filter:
        return None
    names = [(column.input or column.name, column.name) for column in user_columns(dataset)]
    text = CUTOFF.sub(_CUTOFF_NAME, source.increment_filter)
    return _bind_condition(text, names, dialect, alias, f"the increment_filter of {source.name}")


def hist_scope(dataset: ModelDataset, hist: HistState, dialect: Dialect, alias: str = "h") -> str | None:
    """The scope of deletes of a partial snapshot. Raises UsageError for a condition that cannot be bound."""
    scope = dataset.historization.delete_scope
    if scope is None:
        return None
    names = [(column.name, column.name) for column in hist.target_columns]
    return _bind_condition(scope, names, dialect, alias, f"the delete_scope of {dataset.name}")


def _bind_condition(
    text: str, names: Sequence[tuple[str, str]], dialect: Dialect, alias: str, what: str
) -> str:
    """The condition on the alias's columns.

    `names` has pairs of the name in the model and the column's name.
    """

    def wrong(why: str) -> UsageError:
        return UsageError("wrong-model", f"{what} {why}", "Fix the model.")

    if PLACEHOLDER.search(text):
        raise wrong("has an unknown placeholder.")
    try:
        parsed = sqlglot.parse_one(text, read=dialect.SQLGLOT_NAME or None, into=exp.Condition)
    except SqlglotError:
        raise wrong(f"is not a condition: {text!r}.") from None
    if not isinstance(parsed, exp.Condition) or any(parsed.find(kind) for kind in _FORBIDDEN):
        raise wrong("is more than a condition on columns.")

    def column(name: str) -> exp.Expression:
        matches = [ours for theirs, ours in names if theirs == name]
        matches = matches or [ours for theirs, ours in names if _normal(theirs) == _normal(name)]
        if len(matches) != 1:
            raise wrong(f"names {name!r}, which matches {'several' if matches else 'none'} of its columns.")
        return exp.column(exp.to_identifier(matches[0], quoted=True), table=alias)

    def bind(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column | exp.Literal) and node.name == _CUTOFF_NAME:
            return exp.column(_CUTOFF_NAME)  # even in quotes, because the cutoff replaces the whole literal
        if isinstance(node, exp.Anonymous) and str(node.this).lower() == "col" and len(node.expressions) == 1:
            return column(node.expressions[0].name)
        return column(node.name) if isinstance(node, exp.Column) else node

    sql = str(parsed.transform(bind).sql(dialect=dialect.SQLGLOT_NAME or None, comments=False))
    return sql.replace(_CUTOFF_NAME, "{{ DELTA_CUTOFF }}")


def _normal(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def delta_cutoff(model: Model, dataset: ModelDataset, now: datetime) -> datetime | None:
    """The instant to which a delta reaches back, or None if no policy is active."""
    source = source_of(model, dataset)
    policies = source.increment_policies if source else ()
    active = (each for each in policies if each.active and each.environment == model.environment)
    policy = next(active, None)
    if policy is None:
        return None
    try:
        return _step_back(now, policy)
    except (OverflowError, ValueError):  # before the first year
        return datetime.min.replace(tzinfo=UTC)


def _step_back(now: datetime, policy: IncrementPolicy) -> datetime:
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
