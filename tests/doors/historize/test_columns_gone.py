"""Bases and histories that lost one of their own columns through another program (P8)."""

import pytest
from depth import deep
from historizing import dataset, document
from historizing_on_spark import SparkPlace

from backstory.model.table import TableName
from backstory.stores.iceberg.store import existing_as_is

# A load needs these columns. It writes the base's other own columns again.
OWN = [
    *(
        ("rc_c_hist", name)
        for name in (
            "rc_c_key", "rc_c_hist_key", "k", "row_hash", "version_started_at", "version_ended_at", "version_state",
            "load_run_id", "loaded_at",
        )
    ),
    ("rc_c", "k"),
    ("rc_c", "rc_c_key"),
]  # fmt: skip
COMPUTED = "row_hash", "load_run_id", "loaded_at"


@pytest.fixture
def place(store, tmp_path):
    place = SparkPlace(store, tmp_path)
    yield place
    place.close()


def test_a_load_without_a_layout_column_is_refused(place):
    """The error names the column and a remedy, and neither base nor history is written, here and in tasks."""
    place.mode("auto").base("a:1 b:1").load("r1", 1)
    place.base("a:2 b:1")
    names = [TableName("rawcore", name) for name in ("rc_c", "rc_c_hist")]
    for table, column in OWN:
        place.sql(f"ALTER TABLE rawcore.{table} RENAME COLUMN {column} TO elsewhere")
        stood = [existing_as_is(place.store, name).location for name in names]
        for always in (False, True)[: deep(2, 1)]:  # a load is refused before a way of planning is chosen
            place.in_tasks(always=always)

            receipt = place.load(f"{table} {column} {always}", 2)

            assert receipt.status == "rejected"
            assert receipt.error["code"] in {"column-gone", "HIST_COLUMNS"}
            assert column in receipt.error["message"]
            assert receipt.error["remedy"]
            assert [existing_as_is(place.store, name).location for name in names] == stood
        place.sql(f"ALTER TABLE rawcore.{table} RENAME COLUMN elsewhere TO {column}")
    assert place.load("r2", 2).error is None


@pytest.mark.parametrize("always", [False, True], ids=["driver", "tasks"])
@pytest.mark.parametrize("columns", ["row_hash, load_run_id, loaded_at", *COMPUTED][: deep(4, 1)])
def test_a_load_restores_the_computed_columns_of_its_base(place, columns, always):
    """A load writes its hashes and load columns again, and the history is the same as without the loss."""
    place.use(document(dataset("k* a", input="s.csv")))
    (place.folder / "s.csv").write_text("k,a\na,1\nb,1\n")
    assert place.loads("r1", 1)[0].status == "success"
    place.in_tasks(always=always)
    place.sql(f"ALTER TABLE rawcore.rc_c DROP COLUMNS ({columns})")
    (place.folder / "s.csv").write_text("k,a\na,2\nb,1\n")

    (receipt,) = place.loads("r2", 2)

    assert receipt.error is None
    assert place.history() == ["a 1 [1,2) changed r2", "a 2 [2,-) changed r2", "b 1 [1,-) new r1"]
    assert place.rows("SELECT count(*) FROM rawcore.rc_c WHERE rc_c_key IS NULL OR row_hash IS NULL") == [
        (0,)
    ]
