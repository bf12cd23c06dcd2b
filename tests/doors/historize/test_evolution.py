"""Schemas that change between loads, on real databases: R34 to R42 (section 4).

A model file and a CSV are loaded, then both change. Columns are written as `name:TYPE<former`.
"""

import pytest
from historizing import column, dataset, document, save, second
from ruamel.yaml import YAML

from backstory.doors.historize.door import open_model, run_model
from backstory.doors.historize.receipts import LoadRequest
from backstory.doors.historize.resolve import read_state

BASE, HIST = "rawcore.rc_c", "rawcore.rc_c_hist"
OPEN = "version_ended_at IS NULL"


@pytest.fixture
def owner(place):
    return Owner(place)


class Owner:
    """The owner of a folder with a model and its stage file."""

    def __init__(self, place):
        self.place, self.folder, self.count = place, place.folder, 0

    def load(self, columns, csv, *, name="rc_c", model=None, **more):
        """The receipt of the next run. In `csv`, semicolons separate lines; `model` adds keys to the model."""
        self.count += 1
        (self.folder / "stage.csv").write_text(csv.replace(" ", "").replace(";", "\n") + "\n")
        written = dataset("k*", name, input="stage.csv", lineage_key="rawcore:rc_c", **more)
        written["target_columns"] = [self._column(word) for word in columns.split()]
        others = {each["referenced_dataset"] for each in more.get("references", [])}
        tables = [written, *(dataset("r*", other, historize=False) for other in others)]
        model, folder = open_model(save(document(*tables, **(model or {})), self.folder))
        request = LoadRequest(run_id=f"r{self.count}", load_timestamp=second(self.count))
        (receipt,) = run_model(model, folder, self.place.target, request)
        return receipt

    def _column(self, word):
        word, _, hashed = word.partition("#")
        word, _, former = word.partition("<")
        more = {"former_names": former.split(",")} if former else {}
        return column(word) | more | ({"hash_as": hashed} if hashed else {})

    def loaded(self, columns, csv, **more):
        """The schema changes and the counts of a successful load."""
        receipt = self.load(columns, csv, **more)
        assert receipt.status in {"success", "unchanged"}, receipt.error
        counts = " ".join(f"{name}={count}" for name, count in receipt.counts.items() if count)
        return list(receipt.schema_changes), counts

    def refused(self, columns, csv, **more):
        """The code and keys of a refused load, which must not change base or history."""
        before, lock = self.place.dump(BASE, HIST), self.lock_text()
        receipt = self.load(columns, csv, **more)
        assert receipt.status == "rejected"
        assert (self.place.dump(BASE, HIST), self.lock_text()) == (before, lock)
        return receipt.error["code"], receipt.error["keys"]

    def columns(self, table=HIST):
        return list(self.place.target.columns(*table.split(".")))

    def types(self, name):
        return [self.place.target.columns(*table.split("."))[name].lower() for table in (BASE, HIST)]

    def rows(self, listed, where="1 = 1", table=HIST):
        return sorted(self.place.rows(f"SELECT {listed} FROM {table} WHERE {where}"), key=repr)

    def lock_text(self, name="rc_c"):
        path = self.place.lock(name)
        return path.read_text() if path.exists() else None

    def state(self, name="rc_c"):
        return read_state(self.place.lock(name))


CSV = "k,a,b;1,x,10;2,y,20"


def test_r34_a_renamed_column(owner):
    """R34: There is one RENAME COLUMN in the base and one in the history, and no new version."""
    owner.loaded("k* a b:BIGINT", CSV)
    changes, counts = owner.loaded("k* c<a b:BIGINT", "k,c,b;1,x,10;2,y,20")
    assert changes == ["RENAME_COLUMN a to c (rc_c)", "RENAME_COLUMN a to c (rc_c_hist)"]
    assert counts == "unchanged=2"
    assert "a" not in owner.columns(BASE) + owner.columns(HIST)
    assert owner.rows("k, c, version_state") == [("1", "x", "new"), ("2", "y", "new")]
    assert owner.loaded("k* c<a b:BIGINT", "k,c,b;1,x,10;2,y,20") == ([], "unchanged=2")


def test_r34_an_attribute_keeps_its_first_name_in_strict_hashes(owner):
    """R34, 2.4: The history keeps the first name for hashes, even if the model lists only the last name or
    none."""
    strict = {"hash_profile": "strict_v2"}
    rows = "x,10;2,y,20"
    assert owner.loaded("k* a b", f"k,a,b;1,{rows}", model=strict)[1] == "new=2"
    for columns, header in (("k* c<a b", "c"), ("k* d<c b", "d"), ("k* d b", "d")):
        assert owner.loaded(columns, f"k,{header},b;1,{rows}", model=strict)[1] == "unchanged=2"


def test_r34_columns_renamed_along_a_chain_keep_their_values(owner):
    """R34, R41: If `a` becomes `b` and `b` becomes `c`, each value stays in its column."""
    owner.loaded("k* a b", CSV)
    changes, counts = owner.loaded("k* b<a c<b", "k,b,c;1,x,10;2,y,20")
    assert changes == [
        f"RENAME_COLUMN {old} to {new} ({table})"
        for table in ("rc_c", "rc_c_hist")
        for old, new in (("b", "c"), ("a", "b"))
    ]
    assert counts == "unchanged=2"
    assert owner.rows("k, b, c") == [("1", "x", "10"), ("2", "y", "20")]


def test_r41_swapped_names_are_refused(owner):
    """R41: Swapped names are refused, because a repeated rename cannot be detected. A new name works."""
    owner.loaded("k* a b", CSV)
    swapped = "k,a,b;1,10,x;2,20,y"
    assert owner.refused("k* b<a a<b", swapped) == ("AMBIGUOUS_RENAME", ["b", "a"])
    assert owner.loaded("k* c<a b", "k,c,b;1,x,10;2,y,20")[1] == "unchanged=2"
    changes, counts = owner.loaded("k* b<c a<b", swapped)
    assert (counts, len(changes)) == ("unchanged=2", 4)
    assert owner.rows("k, a, b") == [("1", "10", "x"), ("2", "20", "y")]


def test_a_number_too_large_for_its_hash_is_refused(owner):
    """2.4, E1: The error names the column and is an error of the data, not of the database."""
    columns = "k* f:FLOAT#DECIMAL(6,2)"
    owner.loaded(columns, "k,f;1,1.5")
    assert owner.refused(columns, "k,f;1,1e20") == ("HASH_VALUE", ["f"])


def test_r35_a_renamed_dataset(owner):
    """R35, A9: RENAME TABLE applies to base and history, including key columns, and makes no new version."""
    owner.loaded("k* a b", CSV)
    keys = owner.rows("rc_c_key, rc_c_hist_key")
    changes, counts = owner.loaded("k* a b", CSV, name="rc_d", former_names=["rc_c"])
    assert changes == [
        "RENAME_DATASET rc_c to rc_d",
        "RENAME_COLUMN rc_c_key to rc_d_key (rc_d)",
        "RENAME_DATASET rc_c_hist to rc_d_hist",
        "RENAME_COLUMN rc_c_hist_key to rc_d_hist_key (rc_d_hist)",
        "RENAME_COLUMN rc_c_key to rc_d_key (rc_d_hist)",
    ]
    assert counts == "unchanged=2"
    assert owner.rows("rc_d_key, rc_d_hist_key", table="rawcore.rc_d_hist") == keys
    assert owner.place.dump(BASE, HIST) == {BASE: None, HIST: None}
    assert owner.lock_text("rc_c") is None
    assert owner.state("rc_d").former_names == ("rc_c_hist",)


def test_r36_a_base_never_becomes_a_history(owner):
    """R36: A former name that does not end in `_hist` is never a history, even if such a table exists."""
    owner.place.sql("CREATE SCHEMA rawcore")
    owner.place.sql("CREATE TABLE rawcore.rc_old (k INT)")
    state = {"former_names": ["rc_old"], "target_dataset_name": "rc_c_hist", "lineage_key": "x"}
    changes, _ = owner.loaded("k* a b", CSV, hist_state=state)
    assert changes == ["CREATE_TABLE rc_c", "CREATE_TABLE rc_c_hist"]
    assert owner.place.rows("SELECT COUNT(*) FROM rawcore.rc_old") == [(0,)]


def test_r37_r38_a_removed_column_stays(owner):
    """R37, R38, H8: The column stays in the history, inactive, with the time. New versions read NULL."""
    owner.loaded("k* a b:BIGINT", CSV)
    changes, counts = owner.loaded("k* a", CSV)
    assert (changes, counts) == ([], "changed=2")
    assert owner.rows("k, b", OPEN) == [("1", None), ("2", None)]
    assert owner.rows("k, b", f"NOT {OPEN}") == [("1", 10), ("2", 20)]
    (left,) = [each for each in owner.state().target_columns if not each.active]
    assert (left.name, left.retired_at, left.input) == ("b", "2025-01-02 00:00:02.000000", None)
    lock = owner.lock_text()
    owner.loaded("k* a", CSV)
    assert owner.lock_text() == lock, "retired_at does not move"


def test_r37_the_column_of_a_deleted_reference_stays(owner):
    """R37, A11: The foreign key's column stays in the history, inactive."""
    reference = {"id": 1, "referenced_dataset": "rc_r", "key_components": [{"from": "a", "to": "r"}]}
    owner.loaded("k* a b", CSV, references=[reference])
    keys = owner.rows("k, rc_r_key")
    assert all(len(key) == 64 for _, key in keys)
    owner.loaded("k* a b", CSV)
    assert owner.rows("k, rc_r_key") == keys
    (left,) = [each for each in owner.state().target_columns if not each.active]
    assert (left.name, left.system_role, left.input) == ("rc_r_key", "foreign_key", None)


def test_r39_a_returning_column_is_reactivated(owner):
    """R39: The column becomes active again in place. Another type is refused, and nothing is written."""
    owner.loaded("k* a b:BIGINT", CSV)
    owner.loaded("k* a", CSV)
    assert owner.refused("k* a b:DATE", "k,a,b;1,x,2025-01-01") == ("REINTRODUCED_TYPE_CONFLICT", ["b"])
    changes, counts = owner.loaded("k* a b:BIGINT", CSV)
    assert (changes, counts) == ([], "changed=2")
    assert [each.name for each in owner.state().target_columns if not each.active] == []
    assert owner.rows("k, b", OPEN) == [("1", 10), ("2", 20)]


# For each column: its type, a wider type, and a value of the wider type.
WIDER = {
    "b": (":INTEGER", ":BIGINT", "5000000000"),
    "c": (":DECIMAL(4,1)", ":DECIMAL(12,3)", "123456789.125"),
    "d": (":STRING(2)", ":STRING(40)", "a-long-text"),
    "e": (":STRING(2)", "", "a-long-text"),
}
# For each column: its type, and a type that is not wider.
NARROWER = {
    "b": (":BIGINT", ":INTEGER"),
    "c": (":DECIMAL(10,2)", ":DECIMAL(10,3)"),
    "d": (":BIGINT", ""),
    "e": ("", ":BIGINT"),
    "f": (":STRING(9)", ":STRING(5)"),
}


def columns_of(types):
    """The columns of a model: a key, another column, and columns with these types."""
    return "k* a" + "".join(f" {name}{type_}" for name, type_ in types.items())


def csv_of(names, first, second):
    """Two rows with these values."""
    return ";".join([",".join(["k,a", *names]), ",".join(["1,x", *first]), ",".join(["2,y", *second])])


def test_r40_a_column_widens_in_place(owner):
    """R40: The type is altered in base and history, and old versions keep their values."""
    tens, twenties = ["10"] * len(WIDER), ["20"] * len(WIDER)
    owner.loaded(columns_of({name: old for name, (old, *_) in WIDER.items()}), csv_of(WIDER, tens, twenties))
    values = [value for *_, value in WIDER.values()]
    wider = columns_of({name: new for name, (_, new, _) in WIDER.items()})
    changes, _ = owner.loaded(wider, csv_of(WIDER, values, twenties))
    altered = [
        name for name, (type_, *_) in WIDER.items() if owner.place.name != "duckdb" or "STRING" not in type_
    ]
    expected = sorted(f"ALTER_COLUMN_TYPE {name}" for name in altered * 2)
    assert sorted(each.partition(" from")[0] for each in changes) == expected
    assert [len(set(owner.types(name))) for name in WIDER] == [1] * len(WIDER)
    (current,) = owner.rows(", ".join(WIDER), f"k = '1' AND {OPEN}")
    assert list(map(str, current)) == values
    (former,) = owner.rows(", ".join(WIDER), f"k = '1' AND NOT {OPEN}")
    assert list(map(float, former)) == [10] * len(WIDER)


def test_r40_narrowing_is_refused(owner):
    """R40: Nothing is written, including in the base."""
    tens = ["10"] * len(NARROWER)
    types = {name: old for name, (old, _) in NARROWER.items()}
    owner.loaded(columns_of(types), csv_of(NARROWER, tens, tens))
    for name, (_, new) in NARROWER.items():
        model = columns_of(types | {name: new})
        refused = owner.refused(model, csv_of(NARROWER, tens, ["11"] * len(NARROWER)))
        assert refused == ("HIST_TYPE_CONFLICT", [name])


def test_r40_a_table_altered_by_another_program_is_refused(owner):
    """R40, R43: If the table itself differs from the metadata, the load is refused."""
    owner.loaded("k* a b:INTEGER", CSV)
    owner.place.sql(
        f"ALTER TABLE {HIST} ALTER COLUMN b TYPE {'TEXT' if owner.place.name == 'postgres' else 'VARCHAR'}"
    )
    assert owner.refused("k* a b:INTEGER", CSV) == ("UNSAFE_TYPE_DRIFT", ["b"])


def test_fork_keeps_both_columns(owner):
    """R39, 4.4: The old column keeps its values under another name, and the new one has the new type."""
    fork = {"historization": {"on_incompatible_type": "fork"}}
    owner.loaded("k* a b:BIGINT", CSV, **fork)
    owner.place.sql(f"DROP TABLE {BASE}")  # the owner must rebuild a base of another type
    changes, counts = owner.loaded("k* a b:DATE", "k,a,b;1,x,2025-01-01;2,y,2025-01-02", **fork)
    assert changes == [
        "CREATE_TABLE rc_c",
        "RENAME_COLUMN b to b__until_20250102000002 (rc_c_hist)",
        "ADD_COLUMN b (rc_c_hist)",
    ]
    assert counts == "changed=2"
    assert owner.rows("b__until_20250102000002", f"NOT {OPEN}") == [(10,), (20,)]
    assert [str(value) for (value,) in owner.rows("b", OPEN)] == ["2025-01-01", "2025-01-02"]
    again = owner.loaded("k* a b:DATE", "k,a,b;1,x,2025-01-01;2,y,2025-01-02", **fork)
    assert again == ([], "unchanged=2")


@pytest.mark.parametrize("engine", ["four_step", "merge"])
def test_a_fork_with_the_same_texts_begins_versions(owner, engine):
    """4.4: New versions use the new column, even if no hash changes, and a later load begins none."""
    fork = {"historization": {"on_incompatible_type": "fork", "engine": engine}}
    owner.loaded("k* a b", "k,a,b;1,x,10;2,y,;3,,", **fork)
    _, counts = owner.loaded("k* a b:BIGINT", "k,a,b;1,x,10;2,y,;3,,", **fork)
    assert counts == "changed=1 unchanged=2"
    assert owner.rows("k, b", OPEN) == [("1", 10), ("2", None), ("3", None)]
    assert owner.loaded("k* a b:BIGINT", "k,a,b;1,x,10;2,y,;3,,", **fork) == ([], "unchanged=3")


@pytest.mark.parametrize("engine", ["four_step", "merge"])
def test_an_added_reference_begins_versions_with_its_key(owner, engine):
    """2.1, R42: Open versions have the foreign key of the base, although no hash includes it."""
    parts = [{"from": "a", "to": "r"}]
    reference = {"id": 1, "referenced_dataset": "rc_r", "key_components": parts}
    rules = {"historization": {"engine": engine}}
    owner.loaded("k* a b:BIGINT", CSV, **rules)
    added = {**rules, "references": [reference]}
    changes, counts = owner.loaded("k* a b:BIGINT", CSV, **added)
    assert changes == ["ADD_COLUMN rc_r_key (rc_c)", "ADD_COLUMN rc_r_key (rc_c_hist)"]
    assert counts == "changed=2"
    assert owner.rows("k, rc_r_key", OPEN) == owner.rows("k, rc_r_key", table=BASE)
    assert None not in {key for (key,) in owner.rows("rc_r_key", OPEN)}
    assert owner.loaded("k* a b:BIGINT", CSV, **added) == ([], "unchanged=2")


def test_r41_ambiguous_names_are_refused(owner):
    """R41: The message names the table and both columns, and nothing is written."""
    owner.loaded("k* a b", CSV)
    receipt = owner.load("k* c<a,b", "k,c;1,x")
    assert (receipt.status, receipt.error["code"]) == ("rejected", "AMBIGUOUS_RENAME")
    assert receipt.error["keys"] == ["a", "b"]
    assert "rc_c" in receipt.error["message"]
    assert "c" not in owner.columns(BASE)
    assert owner.rows("k, a, b") == [("1", "x", "10"), ("2", "y", "20")]


def test_r42_an_added_column(owner):
    """R42, H8: Old versions read NULL. Every key gets a version, because the row hash includes the column."""
    owner.loaded("k* a", CSV)
    changes, counts = owner.loaded("k* a b:BIGINT", CSV)
    assert changes == ["ADD_COLUMN b (rc_c)", "ADD_COLUMN b (rc_c_hist)"]
    assert counts == "changed=2"
    assert owner.rows("k, b", f"NOT {OPEN}") == [("1", None), ("2", None)]
    assert owner.rows("k, b", OPEN) == [("1", 10), ("2", 20)]


def test_a_lost_lock_file_is_rebuilt_from_the_table(owner):
    """4.2, R37: The columns are read from the table, including retired ones, and no version is added."""
    owner.loaded("k* a b:BIGINT", CSV)
    owner.loaded("k* a", CSV)
    before = owner.place.dump(HIST)
    owner.place.lock().unlink()
    assert owner.loaded("k* a", CSV) == ([], "unchanged=2")
    assert owner.place.dump(HIST) == before
    columns = [(each.name, each.datatype, each.active) for each in owner.state().target_columns[2:5]]
    assert columns == [("k", "STRING", True), ("a", "STRING", True), ("b", "BIGINT", False)]


def test_a_lost_lock_file_and_a_rename_at_once(owner):
    """R34, R35: Former names suffice to restore the metadata."""
    owner.loaded("k* a b:BIGINT", CSV)
    owner.place.lock().unlink()
    _, counts = owner.loaded("k* z<a b:BIGINT", "k,z,b;1,x,10;2,y,20", name="rc_d", former_names=["rc_c"])
    assert counts == "unchanged=2"
    rows = owner.rows("k, z, b", table="rawcore.rc_d_hist")
    assert rows == [("1", "x", 10), ("2", "y", 20)]


def test_the_lock_file_contains_the_metadata_of_the_history(owner):
    """1.3: The file is readable YAML with its origin, loads to the same state, and is written only after
    changes."""
    owner.loaded("k* a b:DECIMAL(10,2)", CSV)
    path = owner.place.lock()
    text = path.read_text()
    assert text.startswith("# Written by backstory historize")
    tree = YAML(typ="safe").load(text)
    assert (tree["target_dataset_name"], tree["lineage_key"]) == ("rc_c_hist", "rawcore:rc_c")
    assert [each["target_column_name"] for each in tree["target_columns"]] == [
        *("rc_c_hist_key", "rc_c_key", "k", "a", "b"),
        *("row_hash", "version_started_at", "version_ended_at", "version_state", "load_run_id", "loaded_at"),
    ]
    written = path.stat().st_mtime_ns
    owner.loaded("k* a b:DECIMAL(10,2)", "k,a,b;1,new,10")
    assert (path.read_text(), path.stat().st_mtime_ns) == (text, written)
    assert [each.name for each in owner.folder.glob("*.new")] == []


def test_a_broken_lock_file_stops_the_load(owner):
    """E1, R43: The metadata of the history is never guessed."""
    owner.loaded("k* a b", CSV)
    path = owner.place.lock()
    path.write_text(path.read_text().replace("lineage_key:", "lineage_kye:", 1))
    receipt = owner.load("k* a b", CSV)
    assert (receipt.status, receipt.error["code"]) == ("rejected", "wrong-model")
    assert "rc_c.hist.lock.yaml, line 3, lineage_kye" in receipt.error["message"]


def test_the_history_state_may_be_in_the_model(owner):
    """1.3: `hist_state` in the model is used if there is no lock file."""
    owner.loaded("k* a b:BIGINT", CSV)
    owner.loaded("k* a", CSV)
    state = YAML(typ="safe").load(owner.lock_text())
    owner.place.lock().unlink()
    assert owner.loaded("k* a", CSV, hist_state=state) == ([], "unchanged=2")
    (left,) = [each for each in owner.state().target_columns if not each.active]
    assert (left.name, left.retired_at) == ("b", "2025-01-02 00:00:02.000000")
