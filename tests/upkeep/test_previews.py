"""A delivery to a branch changes only the branch. Publishing makes it the table in one commit, or is refused."""

from dataclasses import replace

import pyarrow as pa
import pytest
from depth import deep

from backstory.errors import Refused, UsageError
from backstory.formats.memory import CLEAR_TEXT_SHARE, Memory
from backstory.model.table import table_name
from backstory.stores.iceberg.store import IcebergStore, load
from backstory.upkeep.checking import check
from backstory.warehouse import Warehouse

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(spark):
    return Warehouse(IcebergStore(spark), embedded=False)


NUMBERS = iter(range(1, 1000))


@pytest.fixture
def copies(lake, tmp_path):
    """A function that delivers names by id into a separate table, and that table."""
    into = f"preview_{next(NUMBERS)}.customer"

    def bring(day, rows, **options):
        file = tmp_path / f"{day}.csv"
        file.write_text("id,name\n" + "".join(f"{key},{name}\n" for key, name in rows.items()))
        return lake.snapshot(str(file), into=into, at=f"2026-01-0{day}", **options)

    bring(1, {1: "Ann", 2: "Bob", 3: "Cid"}, key="id")
    return bring, into


def names(table):
    return {row["id"]: row["name"] for row in table.current().collect()}


# The memory for a delivery that is planned whole, in parts, or in Spark's tasks.
WAYS = {"whole": None, "parts": 50_000, "tasks": 0}


def of(rows, day):
    """The copy with these ids, whose names are of one day."""
    return {key: f"{key} of {day}" for key in rows}


# Before a release, each way runs with each version. At the gate, each version runs, and the ways that no
# other test here covers.
VERSIONS_OF_WAYS = [("parts", 2), ("tasks", 3), ("parts", 3), ("tasks", 2), ("whole", 2), ("whole", 3)]


@pytest.mark.parametrize(("way", "version"), VERSIONS_OF_WAYS[: deep(6, 2)])
def test_a_published_preview_equals_direct_deliveries(lake, tmp_path, monkeypatch, way, version):
    monkeypatch.setattr("backstory.stores.iceberg.data_files.ROWS_IN_GROUP", 50)
    held = WAYS[way]
    memory = lake.store.memory if held is None else Memory(CLEAR_TEXT_SHARE * held)
    store = replace(lake.store, memory=memory, format_version=version)
    lake = Warehouse(store, embedded=False)
    preview, plain = (f"preview_{next(NUMBERS)}.t" for _ in range(2))
    copies = {
        1: of(range(300), 1),
        2: of(range(100), 1) | of(range(100, 200), 2) | of(range(300, 350), 2),
        3: of(range(150), 1) | of(range(200, 350), 3),
    }
    for day, rows in copies.items():
        file = tmp_path / f"{day}.csv"
        file.write_text("id,name\n" + "".join(f"{key},{name}\n" for key, name in rows.items()))
        for into in (preview, plain):
            branch = "preview" if into == preview and day > 1 else None
            lake.snapshot(str(file), into=into, at=f"2026-01-0{day}", key="id", branch=branch)
    assert versions(lake.branch(preview, "preview")) == versions(lake.table(plain))
    assert len(versions(lake.table(preview))) == 300
    assert not [
        law for law in check(replace(store, branch="preview"), table_name(preview)) if law["violations"]
    ]
    lake.publish(preview, "preview")
    assert versions(lake.table(preview)) == versions(lake.table(plain))
    assert not [law for law in check(store, table_name(preview)) if law["violations"]]


def versions(table):
    """The versions of a table without their recorded times."""
    left_out = {"recorded_at", "_memory"}
    rows = table.store.spark.table(table.store.sql_name(table.name)).collect()
    return sorted(str({k: v for k, v in row.asDict().items() if k not in left_out}) for row in rows)


def test_a_preview_is_read_on_its_branch_and_published(lake, copies):
    bring, into = copies
    receipt = bring(2, {1: "Anna", 2: "Bob", 4: "Dan"}, branch="preview")
    assert dict(receipt.counts)["changed"] == 1
    assert names(lake.table(into)) == {1: "Ann", 2: "Bob", 3: "Cid"}
    assert names(lake.branch(into, "preview")) == {1: "Anna", 2: "Bob", 4: "Dan"}
    bring(3, {1: "Anna", 2: "Bob"}, branch="preview")
    assert names(lake.branch(into, "preview")) == {1: "Anna", 2: "Bob"}
    published = lake.publish(into, "preview")
    assert (published.commits, published.counts["closed"], published.counts["new"]) == (2, 2, 1)
    assert names(lake.table(into)) == {1: "Anna", 2: "Bob"}
    with pytest.raises(UsageError, match="no branch preview"):
        lake.branch(into, "preview")
    assert bring(3, {1: "Anna", 2: "Bob"}).snapshot_id is None


def test_a_preview_requires_a_table_with_commits(lake, copies, tmp_path):
    bring, into = copies
    with pytest.raises(Refused, match="has no commits yet"):
        lake.snapshot(str(tmp_path / "1.csv"), into="preview_none.t", key="id", branch="preview")
    for name in ("main", "a.b", "", "a-b"):
        with pytest.raises(UsageError, match="cannot be the name of a branch"):
            bring(2, {1: "Anna"}, branch=name)
    bring(2, {1: "Anna", 2: "Bob", 3: "Cid"}, branch="preview", dry_run=True)
    with pytest.raises(UsageError, match="no branch preview"):
        lake.branch(into, "preview")


def test_a_preview_cannot_change_columns(lake, copies, tmp_path):
    _, into = copies
    (tmp_path / "wide.csv").write_text("id,name,town\n1,Ann,Rom\n2,Bob,Rom\n3,Cid,Rom\n")
    with pytest.raises(Refused, match="new column town"):
        lake.snapshot(str(tmp_path / "wide.csv"), into=into, branch="preview")
    assert "town" not in lake.table(into).current().columns


def test_options_of_a_preview_apply_after_publication(lake, copies):
    bring, into = copies

    def properties(store=lake.store):
        return dict(load(store, table_name(into)).properties)

    before = properties()
    bring(2, {1: "Anna", 2: "Bob", 3: "Cid"}, branch="preview", remember=True)
    assert properties() == before
    on_branch = properties(replace(lake.store, branch="preview"))
    lake.publish(into, "preview")
    assert properties() == on_branch != before


def test_publishing_over_newer_commits_is_refused(lake, copies):
    bring, into = copies
    bring(2, {1: "Anna", 2: "Bob", 3: "Cid"}, branch="preview")
    bring(3, {1: "Ann", 2: "Bert", 3: "Cid"})
    with pytest.raises(Refused, match="has changed since its branch preview began"):
        lake.publish(into, "preview")
    assert lake.publish(into, "preview", discard=True).discarded
    assert names(lake.table(into)) == {1: "Ann", 2: "Bert", 3: "Cid"}
    commits = lake.table(into).log()
    assert len(commits) == 2  # a discarded preview is not a commit of the table
    bring(4, {1: "Anna", 2: "Bert", 3: "Cid"}, branch="preview")
    lake.publish(into, "preview")
    assert names(lake.table(into)) == {1: "Anna", 2: "Bert", 3: "Cid"}


def test_a_preview_of_a_replaced_column_is_refused(lake):
    """A column of NULLs can get another type without a new snapshot."""
    into = f"preview_{next(NUMBERS)}.t"
    for value, type_, more in [
        (None, pa.string(), {"at": "2026-01-01"}),
        ("12", pa.string(), {"at": "2026-01-02", "branch": "preview"}),
        (None, pa.int64(), {"at": "2026-01-01"}),
    ]:
        lake.snapshot(pa.table({"id": [1], "v": pa.array([value], type_)}), into=into, key="id", **more)
    for end in (lake.publish, lake.branch):
        with pytest.raises(Refused, match="has changed since its branch preview began"):
            end(into, "preview")
    assert lake.publish(into, "preview", discard=True).discarded


def test_a_preview_does_not_replace_newer_options(lake, copies):
    """A stored option of the table can change without a new snapshot."""
    bring, into = copies
    bring(2, {1: "Anna", 2: "Bob", 3: "Cid"}, branch="preview", on_schema_change="refuse")
    bring(1, {1: "Ann", 2: "Bob", 3: "Cid"}, on_schema_change="refuse")
    with pytest.raises(Refused, match="has changed since its branch preview began"):
        lake.publish(into, "preview")
    assert names(lake.branch(into, "preview")) == {1: "Anna", 2: "Bob", 3: "Cid"}


def test_the_main_branch_is_no_preview(lake, copies):
    _, into = copies
    for discard in (False, True):
        with pytest.raises(UsageError, match="'main' cannot be the name of a branch"):
            lake.publish(into, "main", discard=discard)


def test_a_feed_can_be_previewed(lake, tmp_path):
    into = f"preview_{next(NUMBERS)}.t"
    (tmp_path / "a.csv").write_text("id,name,at\n1,Ann,2026-01-01T00:00:00Z\n")
    (tmp_path / "b.csv").write_text("id,name,at\n1,Anna,2026-01-03T00:00:00Z\n1,An,2026-01-02T00:00:00Z\n")
    lake.apply(str(tmp_path / "a.csv"), into=into, key="id", sequence_by="at")
    lake.apply(str(tmp_path / "b.csv"), into=into, branch="preview")
    again = lake.apply(str(tmp_path / "b.csv"), into=into, branch="preview")
    assert again.snapshot_id is None
    assert names(lake.table(into)) == {1: "Ann"}
    lake.publish(into, "preview")
    assert names(lake.table(into)) == {1: "Anna"}
    assert len(versions(lake.table(into))) == 3
