"""Every guard refuses the rows of a batch in every way of planning, before a row is written (law 8)."""

import ast
import inspect
import os

import pytest
from committing import commit
from depth import deep
from destination import HISTORY, VERSIONS, Place, refusal
from tables_as_text import table

from backstory.doors.fivetran import batches
from backstory.formats.batch_file import BatchFile
from backstory.formats.delivered import rows_as
from backstory.model.change import Change
from backstory.stores.tables import existing
from backstory.testing.sender import Sender

SPOILT, LACKING = "holds versions of a record that overlap", "lacks the column"
OPEN_TWICE = "id v n start end active synced \n 3 e 3 T4 TMAX true T4"
# For each guard: the files of a batch in addition to the valid ones.
GUARDS = {
    LACKING: {"replace": "id v n synced start active \n 9 x 1 T9 T9 true"},
    "the key is marked unmodified": {"update": "id v start end \n . x T9 TMAX"},
    "a replaced row must be complete": {"replace": "id v n synced start end active \n 9 . 1 T9 T9 TMAX true"},
    "the time is missing": {"earliest": "id start \n 1 T9 \n 2 -"},
    "the end is missing": {"update": "id v start end \n 1 x T9 -"},
    "a value changes but _fivetran_start is missing": {"update": "id v end \n 1 x T9"},
    SPOILT: {"update": "id v start end \n 3 x T9 TMAX"},
}
RIGHT = "id v n synced start end active \n 8 x 1 T9 T9 TMAX true"
# The driver reads tables in Iceberg and tables in memory alike (tests/contracts).
WAYS = ["memory", "tasks", "driver"][: deep(3, 2)]


def test_every_guard_of_a_batch_is_listed():
    """If the code gets a new guard, this test fails until the guard has a row here."""
    source = "\n".join(map(inspect.getsource, (batches.refuse_incomplete, batches._row_faults)))
    nodes = [*ast.walk(ast.parse(source))]
    whys = [node.value.elts[-1] for node in nodes if isinstance(node, ast.Yield)]
    raised = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "Refused"]
    assert {eval(ast.unparse(why), vars(batches)) for why in whys} == {*GUARDS} - {SPOILT, LACKING}
    assert len(raised) == 2  # a missing column, and all other guards


@pytest.fixture
def place(request, way, schema, tmp_path):
    """A history table, and a way to plan its batches."""
    if way == "memory":
        store, address = request.getfixturevalue("in_memory")
    else:
        from backstory.stores.iceberg.store import IcebergStore

        store = IcebergStore(request.getfixturevalue("spark"))
        address = request.getfixturevalue("spreading" if way == "tasks" else "iceberg_address")
    return Place.made(Sender.to(address, tmp_path), store, schema, HISTORY, VERSIONS)


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_is_refused_in_every_way_of_planning(place):
    """A batch with valid and invalid rows is refused, and the table is unchanged."""
    for guard, wrong in GUARDS.items():
        if guard == SPOILT:
            stored = existing(place.store, place.name)
            commit(place.store, stored, Change(added=rows_as(stored.shape.columns, table(OPEN_TWICE))))
        before = place.rows()
        files = {kind: place.files(rows) for kind, rows in wrong.items()}
        files["replace"] = [*place.files(RIGHT), *files.get("replace", [])]
        assert guard in refusal(place.reply(**files))
        assert place.rows() == before


def grown(path):
    with path.open("ab") as file:
        file.write(b"\n")


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


def replaced(path):
    """Replace the file with another one of the same size and time."""
    before, other = path.stat(), path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def removed(path):
    path.unlink()


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_whose_files_change_while_they_are_read_is_refused(place, monkeypatch):
    """The change happens after the digest is computed. The batch is accepted once it is sent again complete."""
    digest = BatchFile.digest
    for number, change in enumerate((grown, cut, replaced, removed), 8):
        (file,), before = place.files(RIGHT.replace(" 8 ", f" {number} ")), place.rows()

        def digest_and_change(each, change=change):
            text = digest(each)
            change(each.path)
            return text

        content = file.path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(BatchFile, "digest", digest_and_change)
            text = refusal(place.reply(replace=[file]))
        assert f"{file.name} changed while it was read" in text, change
        assert place.rows() == before
        file.path.write_bytes(content)
        place.send(replace=[file])
        assert len(place.rows()) == len(before) + 1
