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
stores/iceberg/test_lineage.py::test_a_batch_planned_by_spark_keeps_row_ids_too
doors/fivetran/test_write_batch.py
doors/native/test_streams.py::test_a_stream_commits_each_batch_once
doors/native/test_snapshot.py::test_L3_L6_a_large_copy_equals_the_rule[more than memory]
doors/historize/test_spark.py::test_a_load_makes_at_most_one_commit
doors/odf/test_event_times.py::test_a_query_reads_times_as_utc
reading/test_statements.py::test_v97_a_timeline_shows_all_or_only_current_statements
reading/test_feeds.py::test_current_feeds_contain_only_live_rows_and_open_versions
upkeep/test_forgetting.py::test_L18_no_file_below_the_table_holds_the_key_or_its_values
"""
# Before a release, other cases of these laws run too (ids of rows, readers), and laws that hold in the
# driver's own process. These are a log's other rows, forgetting and rewinding in another layout, feeds in
# tasks and with other columns. A topic of Kafka, a killed load and a late start of Spark are also included.
MORE = """
stores/iceberg/test_lineage.py::test_a_changed_row_keeps_its_id_and_has_the_commit_of_its_change
stores/iceberg/test_lineage.py::test_a_closed_version_keeps_its_id_and_its_successor_gets_a_new_one
stores/iceberg/test_lineage.py::test_a_row_that_becomes_a_version_keeps_its_id
stores/iceberg/test_lineage.py::test_a_copied_table_has_its_own_row_ids
stores/iceberg/test_lineage.py::test_tables_of_format_version_2_have_no_row_ids
stores/iceberg/test_lineage.py::test_new_rows_are_written_without_ids
reading/test_event_logs.py::test_a_log_is_readable_in_either_encoding
reading/test_statements.py::test_a_corrected_row_yields_two_statements
reading/test_statements.py::test_an_event_is_known_from_its_system_time
reading/test_statements.py::test_a_corrected_event_stays_known_before_its_correction
reading/test_statements.py::test_a_source_column_may_have_the_name_of_a_result_column
stores/iceberg/test_moved_rows.py
doors/fivetran/test_alter.py
doors/native/test_retyping.py::test_overwritten_and_ignored_columns_can_be_retyped
doors/native/test_snapshot.py::test_rows_too_large_for_the_java_heap_are_planned_in_tasks
reading/test_frames.py
stores/iceberg/test_partitions.py
doors/fivetran/test_migrate_tables.py
doors/native/test_snapshot.py::test_columns_are_added_widened_omitted_and_renamed
doors/historize/test_spark.py::test_a_partial_snapshot_closes_only_keys_in_scope
reading/test_event_logs.py::test_a_date_beyond_2038_means_its_first_instant
reading/test_joins.py
reading/test_exports.py
upkeep/test_forgetting.py::test_an_erasure_leaves_other_rows_unchanged
upkeep/test_forgetting.py::test_V89_the_certificate_lists_deletions_without_the_key
doors/odf/test_merge_ways.py::test_logs_without_key_ranges_or_with_many_events_are_merged[no range of keys]
reading/test_event_logs.py::test_a_snapshot_log_is_a_history
reading/test_event_logs.py::test_operations_without_retractions_give_the_same_history
reading/test_event_logs.py::test_ledger_events_never_end
reading/test_feeds.py::test_E16_the_change_feed_skips_a_compaction
upkeep/test_forgetting.py::test_a_repeated_erasure_makes_no_commit
upkeep/test_forgetting.py::test_forgetting_in_an_event_log_is_refused
outside/test_streams.py::test_no_batch_is_committed_twice_with_any_checkpoint
doors/native/test_feeds.py::test_spark_tasks_plan_feeds_truncates_and_late_copies
reading/test_differences.py
journal/test_verify.py::test_r85_maintenance_and_new_columns_keep_a_dataset_valid
spark/test_late.py
doors/fivetran/test_again.py
doors/fivetran/test_equals_rule.py
doors/native/test_feeds.py::test_E17_late_changes_of_settled_times_are_refused
doors/odf/test_event_times.py::test_time_zones_change_no_stored_time
doors/odf/test_event_times.py::test_a_day_begins_at_midnight_utc
upkeep/test_forgetting.py::test_cursors_and_foreign_references_block_an_erasure
upkeep/test_rewinding.py::TestOtherLayouts::test_a_dataset_is_rewound_with_its_chain_by_system_time
outside/historize/test_loads_on_spark.py::test_a_killed_load_is_completed_despite_a_concurrent_load
doors/native/test_feeds.py::test_a_rename_can_follow_a_rewind_of_a_feed
doors/native/test_feeds.py::test_unmodified_csv_cells_keep_values_of_any_type
doors/odf/test_merge_ways.py::test_logs_without_key_ranges_or_with_many_events_are_merged[many events]
reading/test_event_logs.py::test_a_returning_record_never_has_two_versions_at_once
reading/test_event_logs.py::test_a_return_before_the_recorded_removal_ends_the_old_version
reading/test_event_logs.py::test_a_record_has_at_most_one_row_at_any_instant
upkeep/test_forgetting.py::test_forgetting_the_only_record_leaves_an_empty_table
upkeep/test_forgetting.py::test_forgetting_in_a_history_includes_its_base
upkeep/test_rewinding.py::TestOtherLayouts::test_a_history_is_rewound_with_its_base
"""


@pytest.fixture(scope="module")
def environ():
    assert OLDER.is_dir(), "scripts/setup.sh --tests puts it there."
    environ = {**os.environ, "PYTHONPATH": str(OLDER)}
    version_command = [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"]
    version = subprocess.run(version_command, env=environ, capture_output=True, text=True, check=True).stdout
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
