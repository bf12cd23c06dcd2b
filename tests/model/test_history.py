"""The meaning of a history, for every door."""

from datetime import UTC, datetime, timedelta

import pytest

from backstory.errors import Refused
from backstory.model.layout import Layout
from backstory.model.table import Archive, Column, History, Shape, TableName
from backstory.model.types import ColumnType, Kind

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def history(layout, table, columns, key, **more):
    named = tuple(Column(name, ColumnType(Kind.STRING)) for name in columns.split())
    return History(Shape(TableName("s", table), named, tuple(key.split()), layout), **more)


OWN = "row_hash load_run_id loaded_at version_started_at version_ended_at version_state"
LAYOUTS = {
    "a model's": history(Layout.HIST, "c_hist", f"c_hist_key c_key k a {OWN}", "k"),
    "Fivetran's": history(
        Layout.FIVETRAN_HISTORY, "c", "k a _fivetran_start _fivetran_end _fivetran_active", "k"
    ),
    "a dataset's": history(
        Layout.ODF, "c", "offset system_time event_time k a", "k",
        own=frozenset({"offset", "system_time", "event_time"}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("table_history", LAYOUTS.values(), ids=LAYOUTS)
def test_user_columns_are_the_columns_of_the_source(table_history):
    """Key and attributes are the same, whatever other columns a layout has."""
    assert ["k", "a"] == [each.name for each in table_history.user_columns]
    assert ["a"] == [each.name for each in table_history.attributes]


def test_a_dataset_column_may_have_a_fivetran_prefix():
    """Only the table's own record of its columns counts."""
    dataset_history = history(Layout.ODF, "c", "offset k _fivetran_x", "k", own=frozenset({"offset"}))

    assert ["k", "_fivetran_x"] == [each.name for each in dataset_history.user_columns]


def test_keys_are_named_after_their_tables():
    """A model's history has a key of versions and a key of records, named after history and base."""
    model_history = LAYOUTS["a model's"]

    assert ("c_hist_key", "c_key") == (model_history.version_key, model_history.record_key)


def test_an_archive_has_a_name_before_it_exists():
    """It keeps its former name until it is renamed."""
    assert LAYOUTS["a model's"].archive_name == "c_hist_archive"
    assert history(Layout.HIST, "c", "k", "k", archive=Archive("b_archive")).archive_name == "b_archive"


def test_pruned_times_are_refused():
    """A time before the watermark is refused. The watermark and later times are accepted."""
    pruned_history = history(Layout.HIST, "c_hist", "k", "k", whole_since=NOON)

    assert NOON == pruned_history.require_unpruned(NOON)
    with pytest.raises(Refused) as refused:
        pruned_history.require_unpruned(NOON - timedelta(microseconds=1))
    assert ("PRUNED", True) == (refused.value.code, "2026-01-31T12:00:00.000000Z" in refused.value.message)
