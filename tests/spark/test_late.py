"""Spark starts for what needs it, and for nothing else."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from historizing import PEPPER, dataset, document, save

import backstory
from backstory.errors import Refused


@pytest.fixture
def late(spark, tmp_path, monkeypatch):
    """A warehouse of its own, in the Java that is there."""
    monkeypatch.setenv("BACKSTORY_PEPPER", PEPPER)
    found = backstory.open(tmp_path / "warehouse")
    yield found
    started = found.store.session.started
    found.close()
    assert started is None


def test_a_copy_that_the_driver_holds_needs_none(late, tmp_path):
    csv, parquet = tmp_path / "a.csv", tmp_path / "a.parquet"
    csv.write_text("id,name\n1,a\n2,b\n")
    assert late.snapshot(csv, into="crm.a", key="id").counts["new"] == 2
    pq.write_table(pa.table({"id": [1, 3], "name": ["x", "c"]}), parquet)
    told = late.snapshot(parquet, into="crm.a", dry_run=True)
    assert (told.keys["new"], told.keys["changed"], told.keys["closed"]) == (["3"], ["1"], ["2"])
    done = late.snapshot(parquet, into="crm.a")
    assert done.counts == {"new": 1, "changed": 1, "closed": 1, "reopened": 0, "unchanged": 0}
    again = late.snapshot(pa.table({"id": [1, 3], "name": ["x", "c"]}), into="crm.a")
    assert (again.counts["unchanged"], again.snapshot_id) == (2, None)
    with pytest.raises(Refused, match="type"):
        late.snapshot(pa.table({"id": [1], "name": [1]}), into="crm.a")


def test_a_model_whose_stage_the_driver_holds_needs_none(late, tmp_path):
    model = save(document(dataset(input="stage.csv", historize=True)), tmp_path)
    counts = []
    for rows in ("a,1\nb,1\n", "a,2\nc,1\n", "a,2\nc,1\n"):
        (tmp_path / "stage.csv").write_text(f"k,a\n{rows}")
        (done,) = late.historize(model)
        counts.append([done.status, *done.counts.values()])
    assert counts == [
        ["success", 2, 0, 0, 0, 0],
        ["success", 1, 1, 1, 0, 0],
        ["unchanged", 0, 0, 0, 0, 2],
    ]
