"""Every guard refuses a load of a warehouse alike, in every way of planning, before a row is written."""

import ast
import inspect
from datetime import date

import pytest
from historizing import PEPPER, column, dataset, document
from historizing_on_spark import SparkPlace
from structlog.testing import capture_logs

from backstory.doors.historize import preflight
from backstory.doors.historize.preflight import REMEDIES
from backstory.model.table import TableName
from backstory.stores.iceberg.store import existing
from backstory.stores.sql.columns import Datatype
from backstory.strategies.scd2 import plan

# Keys are long, so that a few rows exceed a step.
ROWS = [f"f{number:0400}" for number in range(100)]
BESIDE = " ".join(f"{key}:1" for key in ROWS)
OPEN = "".join(f"{key} 1 [1,-) new r0\n" for key in ROWS)
STAGE = "".join(f"{key},1\n" for key in ROWS)

# For each guard and code: the rows of base, history and stage in addition to ROWS, or instead of all
# ("only"). A load without a stage uses the base as it is.
GUARDS = {
    ("NULL", "NULL_KEY"): {"stage": ",1\n"},
    ("NULL", "NULL_VALUE"): {"stage": "x,\n"},
    ("LONG", "VALUE_TOO_LONG"): {"stage": "x,123456\n"},
    ("STAGE_TWICE", "DUPLICATE_KEY"): {"stage": "x,1\nx,2\n"},
    ("BASE_TWICE", "DUPLICATE_KEY"): {"base": "x:1 x:1", "stage": "x,1\n"},
    ("KEYS_CHANGED", "KEYS_CHANGED"): {"pepper": "another", "stage": ""},
    ("empty stage", "EMPTY_SNAPSHOT"): {"stage": "only"},
    ("NO_KEY", "NULL_KEY"): {"base": "x:1!key"},
    ("NO_HASH", "NULL_ROW_HASH"): {"base": "x:1!hash"},
    ("LIVE_TWICE", "DUPLICATE_KEY"): {"base": "x:1 x:1"},
    ("OPEN_TWICE", "MULTIPLE_OPEN"): {"base": "x:1", "history": "x 1 [1,-) new r0\nx 1 [2,-) new r0\n"},
    ("empty base", "EMPTY_SNAPSHOT"): {"base": "only"},
    ("NEVER_BEGAN", "spoilt-table"): {"base": "x:1", "history": "x 1 [1,-) new r0!start\n"},
    ("DELETED", "MASS_DELETE"): {"history": "x 1 [1,-) new r0\n", "rules": {"max_delete_ratio": 0}},
    ("ENDS_EARLY", "NON_MONOTONIC_TIMESTAMP"): {"base": "x:2", "history": "x 1 [9,-) new r0\n"},
    ("BEGINS_EARLY", "NON_MONOTONIC_TIMESTAMP"): {"base": "x:1", "history": "x 1 [1,9) deleted r0\n"},
    ("EARLIER_DATE", "LATE_EFFECTIVE"): {
        "columns": "k* a:DATE",
        "base": "x:2020-01-01",
        "history": "x 2020-01-02 [1,-) new r0\n",
        "rules": {"effective_dating": {"column": "a", "late_policy": "reject"}},
    },
}
# Codes about the schema, which are raised before a way is chosen.
BEFOREHAND = {"HIST_COLUMNS"}
# Names in the guards' module that are not faults.
RELATIONS = {"BASE", "OPEN"}

AS_THEY_COME = "more rows than a step: planned in their order"
# The bytes that the driver may hold, and the log line.
WAYS = {
    "whole": (None, None),
    "sifted": (240_000, "more rows than a step: planned where fingerprints differ"),
    "parts": (12_000, "more rows than driver-memory holds: planned in parts"),
    "tasks": (0, "planned in Spark's tasks"),
}


def test_every_guard_of_a_load_is_listed():
    """If the code gets a new guard, this test fails until the guard has a row here."""
    nodes = ast.walk(ast.parse(inspect.getsource(preflight)))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    used = {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "scd2"}
    names = {name for name in used if isinstance(getattr(plan, name), str)}
    faults = {name for name in names if name.isupper()} - RELATIONS
    tried = {fault for fault, _ in GUARDS if not fault.startswith(("empty", "KEYS"))}
    assert faults == tried
    assert {code for _, code in GUARDS} == {*REMEDIES, "spoilt-table"} - BEFOREHAND


class DatedPlace(SparkPlace):
    """Rows whose attribute is a day, as in the model."""

    def typed(self, value):
        days = any(each.datatype is Datatype.DATE for each in self.dataset.target_columns)
        return date.fromisoformat(value) if days and value else value


@pytest.fixture
def place(store, tmp_path, monkeypatch):
    monkeypatch.setattr("backstory.stores.iceberg.data_files.ROWS_IN_GROUP", 50)
    monkeypatch.setattr("backstory.stores.iceberg.slice.BY_PLACE", 50)
    monkeypatch.setattr("backstory.engine.tasks.SIFTED_FROM", 1)
    place = DatedPlace(store, tmp_path)
    yield place
    place.close()


@pytest.mark.parametrize("guard", GUARDS, ids=" ".join)
def test_a_load_has_the_same_refusal_in_every_way_of_planning(place, store, guard):
    """Code, sentence and keys are equal in every way of planning. Base and history are unchanged."""
    case, code = GUARDS[guard], guard[1]
    columns = [column(word) for word in case.get("columns", "k* a:STRING(5)").split()]
    columns[1]["nullable"] = code != "NULL_VALUE"
    written = dataset(input="stage.csv", historization=case.get("rules", {})) | {"target_columns": columns}
    place.use(document(written))
    value = "1" if "columns" not in case else "2020-01-01"
    base, history = BESIDE.replace(":1", f":{value}"), OPEN.replace(" 1 ", f" {value} ")
    stage = case.get("stage")
    (place.folder / "stage.csv").write_text("k,a\n" + ("" if stage == "only" else STAGE + (stage or "")))
    place.pepper = case.get("pepper", PEPPER)
    place.base("" if case.get("base") == "only" else f"{base} {case.get('base', '')}")
    place.pepper = PEPPER
    place.put(history + case.get("history", ""))
    before, errors = _snapshots(store), []
    for way, (held, logged) in WAYS.items():
        place.with_memory(held)
        with capture_logs() as logs:
            error = place.load(f"in-{way}", 5, skip_base=stage is None).error
        assert (error["code"], _snapshots(store)) == (code, before)
        events = {each["event"] for each in logs if "planned" in each["event"]}
        if way in {"whole", "tasks"}:
            assert events == {logged} - {None}
        else:  # a first load has nothing to sift; the rows that a sift leaves may be planned in parts
            assert events or (way == "sifted" and stage in {None, "only"})
            assert events <= {AS_THEY_COME, WAYS["sifted"][1], WAYS["parts"][1]}
        errors.append(error.to_dict())
    assert errors == [errors[0]] * len(WAYS)


def _snapshots(store):
    tables = [existing(store, TableName("rawcore", name)) for name in ("rc_c", "rc_c_hist")]
    return [[each.snapshotId() for each in table.iceberg.snapshots()] for table in tables]
