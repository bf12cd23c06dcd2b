"""A model's histories as readers and upkeep know them: the one place where its words become theirs."""

from typing import NamedTuple

from backstory.doors.historize.model import ColumnRole, Historization, HistState, StateLabels
from backstory.doors.historize.stage_rows import column_type
from backstory.model.history import Archive, Dating, History, Labels
from backstory.model.instant import parse_instant
from backstory.model.layout import Layout
from backstory.model.schema import Column, Shape
from backstory.model.table import TableName
from backstory.reading.databases.stored_history import StoredHistory
from backstory.stores.sql.dialects.dialect import Dialect


class PrunedRecords(NamedTuple):
    """The table of what was pruned out of a history, and the record's key in it."""

    table: str
    key: str


def stored_history(
    dialect: Dialect,
    schema: str,
    hist: HistState,
    rules: Historization | None = None,
    archive: Archive | None = None,
    catalog: str | None = None,
) -> StoredHistory:
    """The history of this metadata in a dialect; its columns are those that stand in the table."""
    return StoredHistory(dialect, history_of(schema, hist, rules, archive), hist.target_columns, catalog)


def history_of(
    schema: str, hist: HistState, rules: Historization | None = None, archive: Archive | None = None
) -> History:
    """The history that a model's metadata describes; `rules` ask for its views."""
    columns = hist.target_columns
    stored, shown = hist.state_labels, rules and rules.state_labels
    dating = rules and rules.effective_dating
    return History(
        Shape(
            TableName(schema, hist.target_dataset_name),
            tuple(Column(each.name, column_type(each)) for each in columns),
            tuple(each.name for each in columns if each.system_role is ColumnRole.BUSINESS_KEY),
            Layout.HIST,
        ),
        labels=_words(stored) if stored and stored.mode == "stored" else Labels(),
        references=frozenset(each.name for each in columns if each.system_role is ColumnRole.FOREIGN_KEY),
        former_names=hist.former_names,
        archive=archive,
        whole_since=parse_instant(hist.prune_watermark) if hist.prune_watermark else None,
        shown_labels=_words(shown) if shown and shown.mode == "view" else None,
        dating=Dating(dating.column, dating.granularity) if dating else None,
    )


def _words(labels: StateLabels) -> Labels:
    return Labels(labels.new, labels.changed, labels.deleted, labels.reappeared)
