"""The rows that any writer's commits moved, compared with the rule on the states of time travel."""

from urllib.parse import urlparse

import pyarrow.parquet as pq
import pytest
from depth import deep
from feeding import Fed, line
from specification.change_feed import changes_of_commits, net

from backstory.formats.memory import Memory
from backstory.model.change import CHANGE_TYPE, COMMIT_VERSION
from backstory.model.layout import Layout
from backstory.reading.commit_ranges import lineage_of
from backstory.reading.feeds import read_changes
from backstory.reading.options import ChangesRequest
from backstory.stores.iceberg.positions import moved_rows, row_groups
from backstory.stores.iceberg.store import IcebergStore
from backstory.stores.metadata.catalogs import EmbeddedCatalog
from backstory.stores.metadata.table_rows import TableReader
from backstory.stores.table_files import local_path

MERGE = """MERGE INTO {t} t USING (SELECT * FROM VALUES (5L, 'e2'), (60L, 'z') AS v(id, v)) s ON t.id = s.id
           WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)"""
MODES = (
    "ALTER TABLE {{t}} SET TBLPROPERTIES ('write.delete.mode'='{0}', 'write.update.mode'='{0}', "
    "'write.merge.mode'='{0}', 'write.delete.granularity'='partition')"
)
BY_VECTORS, BY_FILES = (MODES.format(mode) for mode in ("merge-on-read", "copy-on-write"))
LIFE = (
    "INSERT INTO {t} SELECT id, chr(97 + CAST(id AS INT)), id, map('x', double('NaN'), 'y', 0.0) FROM range(9)",
    BY_VECTORS,
    "UPDATE {t} SET v = 'b2' WHERE id IN (1, 2)",
    "DELETE FROM {t} WHERE id = 3",
    MERGE,
    BY_FILES,
    "UPDATE {t} SET v = 'x' WHERE id = 4",
    "UPDATE {t} SET m = map('y', -0.0, 'x', double('NaN')) WHERE id < 7",  # sets equal values
    "CALL backstory.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))",
    BY_VECTORS,
    "DELETE FROM {t} WHERE id = 60",
    "ALTER TABLE {t} RENAME COLUMN v TO w",
    "ALTER TABLE {t} ADD COLUMN more STRING",
    "ALTER TABLE {t} ALTER COLUMN n TYPE BIGINT",
    "INSERT INTO {t} VALUES (9, 'j', 5000000000, NULL, 'new'), (3, 'd', 3, NULL, NULL)",
    "UPDATE {t} SET more = 'too' WHERE id IN (3, 8)",
    "CALL backstory.system.rewrite_position_delete_files(table => '{name}', options => map('rewrite-all', 'true'))",
    "DELETE FROM {t} WHERE id IN (0, 9)",
    "DELETE FROM {t}",
    "INSERT INTO {t} VALUES (1, 'again', NULL, NULL, NULL)",
    "INSERT OVERWRITE {t} VALUES (1, 'again', NULL, NULL, NULL), (2, 'b', NULL, NULL, NULL)",
)


def states(fed):
    """The rows of the table after each commit, under its present columns."""
    names = fed.now.shape.names
    commits = lineage_of(fed.now).commits
    history = [[]]
    for commit in commits:
        frame = fed.store.spark.sql(f"SELECT * FROM {fed.sql} VERSION AS OF {commit.id}")
        rows = [
            {"w": row.get("v"), **row, "m": row["m"] and dict(row["m"])}
            for row in frame.toArrow().to_pylist()
        ]
        history.append([{name: row.get(name) for name in names} for row in rows])
    assert [commit.version for commit in commits] == list(range(1, len(commits) + 1))
    return history


def unordered(row):
    """The value, in which maps have no order and -0.0 is 0.0."""
    shown = row["m"] and sorted((name, value + 0.0) for name, value in dict(row["m"]).items())
    return line({**row, "m": shown})


def by_rule(changes):
    rows = ({**one.row, COMMIT_VERSION: one.version, CHANGE_TYPE: one.type} for one in changes)
    return sorted(map(unordered, rows))


@pytest.mark.parametrize("version", [3, 2][: deep(2, 1)])
def test_changes_of_any_writers_commits_equal_the_rules(spark, version):
    """V102, L12: Vectors, position deletes, rewritten files, compaction, changed columns and truncation,
    between any commits, one by one or net."""
    store = IcebergStore(spark, format_version=version)
    columns = {"id": "LONG", "v": "STRING", "n": "INT"}
    fed = Fed(store, f"life{version}", columns, ("id",), Layout.FIVETRAN_LIVE)
    fed.do("ALTER TABLE {t} ADD COLUMN m MAP<STRING, DOUBLE>", *LIFE)
    seen = states(fed)
    last = len(seen) - 1
    identity = lambda row: row["id"]  # noqa: E731
    for since, until in ((0, last), (3, last - 1), (6, 9)):
        changes = changes_of_commits(seen[since : until + 1], identity, since + 1)
        for options, expected in (({}, changes), ({"net": True}, net(changes, identity))):
            rows = fed.rows(since=since, until=until, **options)
            assert sorted(map(unordered, rows)) == by_rule(expected)


def test_only_row_groups_with_newly_deleted_rows_are_read(store):
    """V112: Only bytes of groups with removed rows and of added files are read. A compaction adds none."""
    fed = Fed(store, "groups", {"id": "LONG", "v": "STRING"}, ("id",), Layout.FIVETRAN_LIVE)
    fed.change([{"id": number, "v": "a"} for number in range(100_000)])
    fed.change(gone="id IN (40000, 99999)")
    table = fed.now
    commits = lineage_of(table).commits
    moved = moved_rows(store, table, commits[0].id, commits[1:])
    ((file, (move,)),) = moved.moves.items()
    size = int(
        store.spark.sql(f"SELECT sum(file_size_in_bytes) FROM {fed.sql}.files WHERE content = 0").head()[0]
    )
    groups = row_groups(table, file, size, move.positions)
    assert len(groups) == 2
    assert moved.files(store).count() == 32_768 + 100_000 % 32_768
    assert [row.id for row in moved.frame(store).collect()] == [40_000, 99_999]
    footer = pq.read_metadata(urlparse(file).path)
    held = sum(footer.row_group(group).total_byte_size for group in (1, 3))
    assert 0 < moved.bytes <= 1.2 * min(held, size)
    moved.release(store)
    store.spark.sql(
        f"CALL backstory.system.rewrite_data_files(table => '{fed.name}', options => map('rewrite-all', 'true'))"
    )
    table = fed.now
    whole = moved_rows(store, table, None, lineage_of(table).commits)
    assert whole.rows == 100_002
    assert size - len(b"PAR1") <= whole.bytes <= size
    whole.release(store)


def test_delete_files_of_unchanged_data_files_are_not_read(spark):
    store = IcebergStore(spark, format_version=2)
    fed = Fed(store, "untouched", {"id": "LONG", "v": "STRING"}, ("id",), Layout.FIVETRAN_LIVE)
    for ids in ((1, 2), (3, 4)):
        fed.change([{"id": number, "v": "a"} for number in ids])
    fed.change(gone="id = 1")
    (untouched,) = spark.sql(f"SELECT file_path FROM {fed.sql}.delete_files").collect()
    fed.change(gone="id = 3")
    local_path(untouched.file_path).unlink()
    catalog = EmbeddedCatalog(store.folder)
    with Memory(1 << 30).lease() as lease:
        small = read_changes(TableReader(catalog.describe(fed.name), catalog, lease), ChangesRequest(since=3))
    assert [(row["id"], row[CHANGE_TYPE]) for row in small.rows] == [(3, "delete")]
