"""Spark 3.5: laws of the store, deliveries, readers and upkeep, run again in a process with that Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from depth import DEPTH

pytestmark = pytest.mark.process

OLDER, VERSION = Path(sys.prefix) / "spark35", "3.5.9"
TESTS = Path(__file__).parents[1]
# The store and its sessions; Fivetran's batches and schema changes; a stream; deliveries that Spark's tasks
# plan, and some that the driver plans; readers; upkeep. Plans that never reach Spark do not depend on its
# version.
LAWS = """
contracts/test_stores.py
spark/test_versions.py
spark/test_session.py
spark/test_settled.py
stores/iceberg/test_foreign_session.py
stores/iceberg/test_jvm.py
stores/iceberg/test_lineage.py::test_rows_that_spark_changes_keep_their_ids
stores/iceberg/test_lineage.py::test_a_batch_that_spark_plans_keeps_ids_too
doors/fivetran/test_write_batch.py
doors/native/test_streams.py::test_a_stream_commits_each_batch_once
doors/native/test_snapshot.py::test_L3_L6_a_copy_that_is_large_gives_the_rules_rows[more than memory]
doors/historize/test_spark.py::test_a_load_is_one_commit_and_none_if_nothing_changed
doors/odf/test_event_times.py::test_a_query_reads_times_as_utc
reading/test_statements.py::test_v97_statements_on_both_axes_and_what_is_told_now_on_one
reading/test_feeds.py::test_current_rows_of_each_layout
upkeep/test_forgetting.py::test_L18_no_file_below_the_table_holds_the_key_or_its_values
"""
# Before a release, other cases of these laws run too (ids of rows, readers), and laws that hold in the
# driver's own process. These are a log's other rows, forgetting and rewinding in another layout, feeds in
# tasks and with other columns. A topic of Kafka, a killed load and a late start of Spark are also included.
MORE = """
stores/iceberg/test_lineage.py::test_a_changed_row_keeps_its_id_and_tells_when_it_changed
stores/iceberg/test_lineage.py::test_a_version_that_is_closed_keeps_its_id_and_its_successor_gets_one
stores/iceberg/test_lineage.py::test_a_row_is_the_version_that_it_becomes
stores/iceberg/test_lineage.py::test_a_copy_of_a_table_has_rows_of_its_own
stores/iceberg/test_lineage.py::test_rows_without_ids_are_written_as_ever
stores/iceberg/test_lineage.py::test_rows_that_only_begin_are_written_without_ids
reading/test_event_logs.py::test_a_log_is_read_in_either_encoding
reading/test_statements.py::test_a_row_tells_two_steps
reading/test_statements.py::test_an_event_is_told_from_its_system_time_on
reading/test_statements.py::test_a_corrected_event_was_told_until_then
reading/test_statements.py::test_a_source_may_call_its_columns_as_the_answer_calls_its_own
stores/iceberg/test_moved_rows.py
doors/fivetran/test_alter.py
doors/native/test_retyping.py::test_overwritten_and_ignored_columns_take_types_too
doors/native/test_snapshot.py::test_rows_that_javas_heap_does_not_hold_are_planned_in_tasks
reading/test_frames.py
stores/iceberg/test_partitions.py
doors/fivetran/test_migrate_tables.py
doors/native/test_snapshot.py::test_columns_come_widen_stay_away_and_are_renamed
doors/historize/test_spark.py::test_a_partial_snapshot_closes_what_is_in_scope
reading/test_event_logs.py::test_a_day_in_any_year_is_its_first_instant
reading/test_joins.py
reading/test_exports.py
upkeep/test_forgetting.py::test_rows_that_stay_are_the_rows_that_they_were
upkeep/test_forgetting.py::test_V89_the_certificate_says_what_went_and_never_the_key
doors/odf/test_merge_ways.py::test_a_log_that_cannot_be_asked_for_a_few_keys_is_for_tasks[no range of keys]
reading/test_event_logs.py::test_a_snapshot_log_is_a_history
reading/test_event_logs.py::test_operations_say_the_same_where_nothing_is_retracted
reading/test_event_logs.py::test_events_of_a_ledger_stay_true
reading/test_feeds.py::test_E16_the_feed_of_changes_with_a_compaction_between
upkeep/test_forgetting.py::test_a_second_time_there_is_nothing_and_no_commit
upkeep/test_forgetting.py::test_an_event_log_is_chained_and_forgets_nothing
outside/test_streams.py::test_whatever_a_checkpoint_remembers_nothing_is_committed_twice
doors/native/test_feeds.py::test_spark_alone_plans_feeds_truncates_and_late_copies
reading/test_differences.py
journal/test_verify.py::test_r85_a_dataset_stays_what_it_was
spark/test_late.py
doors/fivetran/test_again.py
doors/fivetran/test_equals_rule.py
doors/native/test_feeds.py::test_E17_what_comes_after_settling
doors/odf/test_event_times.py::test_zones_change_nothing
doors/odf/test_event_times.py::test_a_day_begins_at_midnight_utc
upkeep/test_forgetting.py::test_who_reads_what_was_is_asked_first
upkeep/test_rewinding.py::TestOtherLayouts::test_a_dataset_goes_back_by_system_time_and_its_chain_with_it
outside/historize/test_loads_on_spark.py::test_a_load_that_is_killed_goes_on_beside_another
doors/native/test_feeds.py::test_a_rename_follows_a_rewind_of_a_feed_too
doors/native/test_feeds.py::test_unmodified_cells_of_a_csv_leave_columns_of_any_type
doors/odf/test_merge_ways.py::test_a_log_that_cannot_be_asked_for_a_few_keys_is_for_tasks[many events]
reading/test_event_logs.py::test_what_comes_back_to_its_own_time_was_away
reading/test_event_logs.py::test_a_return_before_its_end_was_known_ends_it
reading/test_event_logs.py::test_at_any_instant_a_record_has_one_row_at_most
upkeep/test_forgetting.py::test_the_only_record_leaves_an_empty_table
upkeep/test_forgetting.py::test_a_history_forgets_with_its_base
upkeep/test_rewinding.py::TestOtherLayouts::test_a_history_goes_back_with_its_base
"""


@pytest.fixture(scope="module")
def environ():
    assert OLDER.is_dir(), "scripts/setup.sh --tests puts it there."
    environ = {**os.environ, "PYTHONPATH": str(OLDER)}
    asked = [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"]
    version = subprocess.run(asked, env=environ, capture_output=True, text=True, check=True).stdout
    assert version.strip() == VERSION
    return environ


def test_laws_hold_on_spark_3_5(environ):
    """One process runs them all, and starts that Spark once."""
    laws = LAWS + MORE if DEPTH == "laws" else LAWS
    paths = [TESTS / each for each in laws.split("\n") if each]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "spark or process",
        *paths,
    ]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=1800)
    assert not done.returncode, done.stdout[-6000:] + done.stderr[-2000:]
