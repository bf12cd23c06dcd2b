"""Names that collide with ours or with other datasets, and inexact numbers."""

import pytest
from historizing import column, dataset, document, model_of, versions

from backstory.doors.historize import door
from backstory.doors.historize.hist_state import ModelPlace, find_only_state
from backstory.doors.historize.model import ModelColumn
from backstory.doors.historize.upkeep import Upkeep
from backstory.errors import TryAgain, UsageError
from backstory.stores.sql.ddl import fits
from backstory.stores.sql.postgres_engine import open_postgres


def test_columns_may_have_internal_names(place, engine):  # E4, R29
    """An attribute may have any name that a statement uses internally."""
    names = ("a", "action", "open_key", "match_key", "backstory_copy")
    rules = {"engine": engine, "duplicate_keys": "collapse_identical"}
    place.use(document(dataset(f"k* {' '.join(names)}", input="stage.csv", historization=rules)))
    for number, word in enumerate(["deleted", "hold"], 1):
        text = f"k,{','.join(names)}\nx,{','.join([str(number), *[word] * 4])}\n"
        (place.folder / "stage.csv").write_text(text)
        (receipt,) = place.loads(f"r{number}", number)
        assert receipt.error is None
    assert place.history() == versions("""
        x 1 [1,2) changed r2
        x 2 [2,-) changed r2
    """)


def test_column_names_of_a_file_may_differ_only_by_case(place):
    """E4: Each column gets the values under its exact name. One name may feed two columns."""
    written = dataset("k* order upper again", input="stage.csv")
    written["target_columns"][2]["input"], written["target_columns"][3]["input"] = "Order", "order"
    place.use(document(written))
    (place.folder / "stage.csv").write_text("k,Order,order\nx,1,2\n")
    (receipt,) = place.loads("r1", 1)
    assert receipt.error is None
    assert place.rows('SELECT "order", upper, again FROM rawcore.rc_c_hist') == [("2", "1", "2")]


@pytest.mark.parametrize("place", ["nobody@{}/postgres", "backstory@{}/nowhere"])
def test_a_refused_login_is_wrong_usage(postgresql_url, place):
    """A refused login is wrong usage, because a repeated attempt would not help. An unreachable server is
    temporary."""
    server = postgresql_url.partition("@")[2].partition("/")[0]
    with pytest.raises(UsageError, match="does not exist"):
        open_postgres(f"postgresql://{place.format(server)}")
    with pytest.raises(TryAgain):
        open_postgres("postgresql://backstory@127.0.0.1:1/postgres")


def test_a_former_name_is_free_after_the_tables_are_renamed(place):  # section 4.2
    """A former name of a dataset is free only after its tables are renamed."""
    (place.folder / "a.csv").write_text("k,a\nx,1\n")
    (place.folder / "b.csv").write_text("k,a\ny,2\n")
    place.use(document(dataset(name="rc_client", lineage_key="one", input="a.csv")))
    place.loads("r1", 1)
    renamed = dataset(name="rc_customer", lineage_key="one", former_names=["rc_client"], input="a.csv")
    other = dataset(name="rc_client", lineage_key="two", input="b.csv")
    place.use(document(other, renamed))
    with pytest.raises(UsageError, match="rc_customer was called rc_client before") as refused:
        place.loads("r2", 2)
    assert refused.value.remedy == "Load rc_customer first: move it before rc_client."
    with pytest.raises(UsageError) as refused:
        place.loads("r2", 2, dataset="rc_client")
    assert refused.value.remedy == "Load rc_customer first."
    place.use(document(renamed, other))
    (place.folder / "a.csv").rename(place.folder / "c.csv")
    for dry_run in (True, False):
        failed, second = place.loads("r2", 2, dry_run=dry_run)
        assert (failed.error["code"], second.error["code"]) == ("no-stage", "wrong-model")
        assert second.error["remedy"] == "Load rc_customer first."
    (place.folder / "c.csv").rename(place.folder / "a.csv")
    assert [each.error for each in place.loads("r3", 3, dry_run=True)] == [None, None]
    assert list(place.folder.glob("*.hist.lock.yaml")) == [place.lock("rc_client")]
    for number in (3, 4):
        first, second = place.loads(f"r{number}", number)
        assert (first.error, second.error) == (None, None)
        locks = sorted(place.folder.glob("*.hist.lock.yaml"))
        assert locks == [place.lock("rc_client"), place.lock("rc_customer")]
    assert (first.counts["unchanged"], second.counts["unchanged"]) == (1, 1)


def test_a_dataset_never_uses_the_tables_of_another_dataset(place):  # section 4.2
    """A former name that another dataset has now is not a name of the renamed dataset, its history or archive."""
    (place.folder / "a.csv").write_text("k,a\nx,1\n")
    (place.folder / "b.csv").write_text("k,a\ny,2\n")

    def use(*names):
        """A dataset that had these names, and another one that has the first of them now."""
        *former, name = names
        mine = dataset(name=name, lineage_key="one", former_names=former, input="a.csv")
        place.use(document(*[dataset(name="rc_a", lineage_key="two", input="b.csv")][: len(former)], mine))

    use("rc_a")
    place.loads("r1", 1)
    use("rc_a", "rc_b")
    place.loads("r2", 2, dataset="rc_b")
    place.loads("r3", 3)
    use("rc_a", "rc_b", "rc_c")
    place.sql("CREATE TABLE rawcore.rc_a_hist_archive AS SELECT * FROM rawcore.rc_a_hist")
    for number, dropped in enumerate([[], ["rc_c", "rc_c_hist"]], 4):
        for table in dropped:
            place.sql(f"DROP TABLE rawcore.{table}")
        assert [each.error for each in place.loads(f"r{number}", number)] == [None, None]
        rows = [place.rows(f"SELECT k FROM rawcore.{table}") for table in ("rc_a_hist", "rc_c", "rc_c_hist")]
        assert rows == [[("y",)], [("x",)], [("x",)]]
        keep = Upkeep(place.model, place.folder, place.target, place.target._engine, "rc_c")
        assert keep.history().model.archive is None
        assert sorted(place.folder.glob("*.lock.yaml")) == [place.lock("rc_a"), place.lock("rc_c")]


def test_a_dataset_never_uses_the_lock_file_of_another_dataset(place):  # section 1.3
    """A lock file with the lineage key of another dataset describes the history of that dataset only."""
    (place.folder / "a.csv").write_text("k,a\nx,1\n")
    renamed = dataset(name="rc_customer", lineage_key="one", former_names=["rc_client"], input="a.csv")
    for key in ("one", "two", "three"):  # "three" was the key of the renamed dataset before
        place.use(document(dataset(name="rc_client", lineage_key=key, input="a.csv")))
        place.loads(f"r-{key}")
        other = dataset(name="rc_client", lineage_key="two", input="a.csv")
        model = model_of(document(renamed, other))
        mine, theirs = model.target_datasets
        for owner, taken in ((mine, key != "two"), (theirs, key != "one")):
            states = (
                find_only_state(model, owner, place.folder),
                ModelPlace(model, place.folder, place.target).find_state(owner),
            )
            assert [state and state.lineage_key for state in states] == [key if taken else None] * 2
    place.lock("rc_client").rename(place.lock("rc_customer"))
    place.use(document(dataset(name="rc_customer", lineage_key="one"), dataset(lineage_key="three")))
    assert find_only_state(place.model, place.dataset, place.folder).lineage_key == "three"


def test_a_reused_former_name_keeps_its_lock_file(place):  # section 1.3: the state cannot be derived
    for number, (name, former) in enumerate(
        [("rc_a", []), ("rc_b", ["rc_a"]), ("rc_a", ["rc_a", "rc_b"])], 1
    ):
        (place.folder / "a.csv").write_text("k,a\nx,1\n")
        place.use(document(dataset(name=name, lineage_key="one", former_names=former, input="a.csv")))
        (receipt,) = place.loads(f"r{number}", number)
        assert receipt.error is None
        assert list(place.folder.glob("*.lock.yaml")) == [place.lock(name)]


def test_each_attempt_is_logged(place, monkeypatch):  # R49, sections 6.1 and 6.3
    tries = iter([TryAgain("conflict", "Another writer.", "Wait."), None, *[TryAgain("away", "x", "y")] * 3])
    loaded = door.ModelLoads._load

    def busy(self, run):
        error = next(tries)
        if error:
            raise error
        return loaded(self, run)

    monkeypatch.setattr(door.ModelLoads, "_load", busy)
    for name, value in {"ATTEMPTS": 3, "FIRST": 0.0, "SPREAD": 0.0}.items():
        monkeypatch.setattr(f"backstory.engine.deliver.{name}", value)
    (place.folder / "a.csv").write_text("k,a\nx,1\n")
    place.use(document(dataset(input="a.csv")))
    for run in ("r1", "r2"):
        place.loads(run)
    columns = "load_run_id, attempt_no, status"
    attempts = place.rows(f"SELECT {columns} FROM meta.load_run_log ORDER BY load_run_id, attempt_no")
    assert attempts == [
        ("r1", 1, "error"),
        ("r1", 2, "success"),
        ("r2", 1, "error"),
        ("r2", 2, "error"),
        ("r2", 3, "error"),
    ]


def test_an_input_matches_its_table_in_any_case(place):  # R28
    """If a load failed, datasets that read its table are not loaded, however they spell its name. A dataset
    that is loaded before its input is refused."""
    (place.folder / "a.csv").write_text("k,a\nx,1\nx,2\n")
    again = dataset(name="rc_d", input="RAWCORE.rc_c_hist_labeled")
    place.use(document(dataset(input="a.csv"), again))
    first, second = place.loads("r1", 1)
    assert (first.error["code"], second.error["code"]) == ("DUPLICATE_KEY", "BASE_NOT_LOADED")
    place.use(document(again, dataset(input="a.csv")))
    with pytest.raises(UsageError, match="which is not loaded before it"):
        place.loads("r2", 2)


def test_two_key_columns_with_one_name_are_refused():  # section 2.3: every business key is a part of the key
    columns = [column("a*") | {"key_name": "id"}, column("b*") | {"key_name": "id"}, column("x")]
    with pytest.raises(UsageError, match="the key already has id"):
        model_of(document(dataset() | {"target_columns": columns}))


def test_the_label_of_new_records_applies_to_reappeared_records():  # section 7.2
    labels = {"new": "N", "changed": "C", "deleted": "D"}
    target = model_of(document(dataset(historization={"state_labels": labels}))).target_datasets[0]
    assert target.historization.state_labels.reappeared == "N"


def test_a_dry_run_does_not_list_kept_keys(place):  # R25
    place.mode("auto", snapshot="partial")
    place.base("a:1 b:1").load("r1", 1)
    receipt = place.base("a:1").load("r2", 2, dry_run=True)
    assert (receipt.counts["deleted"], list(receipt.keys["deleted"])) == (0, [])


def test_the_delete_ratio_is_exact(place):  # P7: more than the part, not as much
    place.mode("auto", max_delete_ratio=0.29)
    place.base(" ".join(f"k{n}:1" for n in range(100))).load("r1", 1)
    assert place.base(" ".join(f"k{n}:1" for n in range(71))).load("r2", 2).counts["deleted"] == 29


def test_a_live_row_is_preferred_over_a_flagged_row(place, engine):  # section 7.3, P3
    rules = {"engine": engine, "duplicate_keys": "collapse_identical"}
    rules |= {"soft_delete": {"column": "gone", "deleted_values": ["X"]}}
    columns = [column("k*"), column("a"), column("gone") | {"hash": False}]
    written = dataset(input="stage.csv", historization=rules) | {"target_columns": columns}
    place.use(document(written))
    (place.folder / "stage.csv").write_text("k,a,gone\nx,1,X\nx,1,\nx,2,X\n")
    (receipt,) = place.loads("r1", 1)
    assert (receipt.error, receipt.counts["new"]) == (None, 1)
    assert place.history() == versions("x 1 [1,-) new r1")


def test_unbounded_numbers_and_custom_types_fit_no_column(place):  # Law 7
    """PostgreSQL's plain numeric has unlimited digits, and an enum matches no type of ours."""
    whole = ModelColumn.model_validate(column("c:DECIMAL(38,0)"))
    text = ModelColumn.model_validate(column("c"))
    assert fits("numeric(38,0)" if place.name == "postgres" else "DECIMAL(38,0)", whole, place.dialect)
    assert not fits("numeric", whole, place.dialect)
    assert not fits("stage.mood", text, place.dialect)


def test_rows_that_differ_in_an_unhashed_float_collapse(place):  # R9, R24
    rules = {"duplicate_keys": "collapse_identical"}
    columns = [column("k*"), column("a"), column("f:FLOAT") | {"hash": False}]
    place.use(document(dataset(input="stage.csv", historization=rules) | {"target_columns": columns}))
    (place.folder / "stage.csv").write_text("k,a,f\nx,1,0.5\nx,1,0.25\n")
    (receipt,) = place.loads("r1", 1)
    assert (receipt.error, receipt.counts["new"]) == (None, 1)
