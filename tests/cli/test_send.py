"""`backstory send`: the difference of two copies as one batch, which is the same if it is sent again."""

import json
import math
import socket
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from committing import snapshots_of
from destination import serving
from memory_store.store import MemoryStore, load, rows_of

from backstory.cli.app import run
from backstory.errors import UsageError
from backstory.model.table import TableName
from backstory.model.types import Kind
from backstory.testing import sender


@pytest.fixture(scope="module")
def destination():
    store = MemoryStore()
    with serving({"backstory": store}) as address:
        yield store, address


@pytest.fixture
def send(destination, tmp_path, monkeypatch, capsys, request):
    """Send two copies. Returns the commits of their table, and the number of sent changes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    store, address = destination
    name = request.node.name.replace("[", "_").strip("]")

    def send(before, after, *options, code=0):
        ending = "json" if after.startswith("[") else "csv"
        paths = [f"before.{ending}", f"after.{ending}"]
        for path, text in zip(paths, (before, after), strict=True):
            Path(path).write_text(text)
        words = ["--to", address, "--schema", "crm", "--table", name, "--key", "id", "--output", "json"]
        assert run(["send", *paths, *words, *options]) == code
        send.answer = answer = json.loads(
            capsys.readouterr().out.splitlines()[-1]
        )  # the server also logs there
        table = load(store, TableName("crm", name))
        return len(snapshots_of(table)) if code == 0 else answer["error"]["code"]

    return send


ONE = "id,name,at\n1,ann,10:00\n"
TWO = "id,name,at\n1,ann,10:00\n2,bob,11:30\n"
THREE = "id,name,at\n2,bob,11:30\n"


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--history",),
        ("--compression", "gzip"),
        ("--encryption", "none", "--compression", "off"),
    ],
)
def test_the_same_pair_sent_twice_is_one_commit(send, options):
    """F14: Names, sizes and content of its files are equal, including in the batch that created the table."""
    assert send("", ONE, *options) == 1
    assert send("", ONE, *options) == 1
    assert send(ONE, TWO, *options) == 2
    assert send(ONE, TWO, *options) == 2
    assert send(TWO, THREE, *options) == 3
    assert send(ONE, TWO, *options) == 4  # there was another batch in between
    assert send(ONE, ONE, *options) == 4


def test_a_repeated_batch_is_reported_as_recognised(send):
    """It is sent anyway. Another batch in between makes it a new one."""

    def recognised(*copies):
        assert send(*copies) >= 1
        (receipt,) = send.answer
        return receipt["sent"], receipt["recognised"]

    assert recognised("", ONE) == (True, False)
    assert recognised("", ONE) == (True, True)
    assert recognised(ONE, TWO) == (True, False)
    assert recognised("", ONE) == (True, False)
    assert recognised(ONE, ONE) == (False, False)


def test_the_same_pair_with_another_time_is_another_batch(send):
    for time in ("2026-01-01", "2026-01-01", "2026-01-02"):
        commits = send("", ONE, "--at", time)
    assert commits == 2


def test_a_refused_batch_does_not_make_a_repeated_batch_new(send):
    """A refused batch does not count as one in between."""
    assert send("", ONE) == 1
    assert send(ONE, "id,name,at\n1,ann,10:00\n2,bob,12:00\n", "--at", "99999-01-01", code=2)
    assert send("", "id,name,at\nx,ann,10:00\n", code=3) == "task"
    assert send("", ONE) == 1


def test_a_format_that_the_destination_does_not_take_is_refused(send):
    """Nothing is sent, and the remedy is the destination's format."""
    assert send("", ONE) == 1
    assert send(ONE, TWO, "--format", "parquet", code=2) == "bad-option"
    assert send.answer["error"]["remedy"] == "Use `--format csv`."
    assert send(ONE, TWO) == 2


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_an_empty_file_has_no_columns_to_send(send, options):
    """A header without rows deletes all rows."""
    assert send("", ONE) == 1
    assert send(ONE, "", *options, code=2) == "no-key"
    assert "header" in send.answer["error"]["remedy"]
    assert send(ONE, "id,name,at\n") == 2


def test_batches_are_sent_without_a_cache(send, tmp_path):
    """Without the cache, each batch is new."""
    (tmp_path / ".cache").write_text("no folder")
    assert (send("", ONE), send("", ONE)) == (1, 2)


def test_files_are_sent_with_their_format_options(send, destination, tmp_path):
    """The destination's table has the values as the options describe the files."""
    words = (
        "--separator",
        ";",
        "--decimal",
        ",",
        "--null",
        "NA",
        "--type",
        "zip=STRING",
        "--encoding",
        "cp1252",
    )
    older = "id;zip;sum;name\n1;01067;1,5;NA\n"
    newer = "id;zip;sum;name\n1;01067;2,25;Ann\n"
    assert (send("", older, *words), send(older, newer, *words)) == (1, 2)
    table = load(destination[0], TableName("crm", "test_files_are_sent_with_their_format_options"))
    kinds = {column.name: column.type.kind for column in table.shape.user_columns}
    assert kinds == {"id": Kind.LONG, "zip": Kind.STRING, "sum": Kind.DOUBLE, "name": Kind.STRING}
    (row,) = rows_of(destination[0], table).to_pylist()
    assert (row["zip"], row["sum"], row["name"]) == ("01067", 2.25, "Ann")


def test_nested_values_are_sent_as_json(send, destination):
    """The column of type JSON has the texts of the file."""
    one = '[{"id": 1, "x": {"k": [1, 2.50]}}, {"id": 2, "x": {}}, {"id": 3, "x": null}]'
    two = '[{"id": 1, "x": {"k": [1, 2.50]}}, {"id": 2, "x": {"a": ["é"]}}]'
    assert (send("", one), send(one, two), send(one, two)) == (1, 2, 2)
    assert [send.answer[0][kind] for kind in ("replace", "update", "delete")] == [0, 1, 1]
    table = load(destination[0], TableName("crm", "test_nested_values_are_sent_as_json"))
    assert {column.name: column.type.kind for column in table.shape.user_columns}["x"] == Kind.JSON
    texts = {row["id"]: row["x"] for row in rows_of(destination[0], table).to_pylist()}
    assert texts == {1: '{"k":[1,2.50]}', 2: '{"a":["é"]}'}


def test_typed_parquet_values_are_converted_for_sending(tmp_path):
    """A map is an object, bytes are base64, a float has the digits of its text, and NaN equals NaN. A nested
    column is refused in a key."""
    columns = {
        "id": pa.array([1]),
        "map": pa.array([[("k", b"\xff")]], pa.map_(pa.string(), pa.binary())),
        "twice": pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64())),
        "single": pa.array([72.1], pa.float32()),
        "nan": pa.array([math.nan]),
    }
    pq.write_table(pa.table(columns), tmp_path / "copy.parquet")
    copy = sender.read_copy(tmp_path / "copy.parquet", ["id"])
    (row,) = copy.rows.values()
    assert (row["map"], row["single"]) == ('{"k": "/w=="}', 72.1)
    assert row["twice"] == '[["k", 1], ["k", 2]]'  # an object cannot hold a key twice
    assert sender.difference(copy, copy, datetime.now(UTC), history=False).empty
    with pytest.raises(UsageError) as refusal:
        sender.read_copy(tmp_path / "copy.parquet", ["id", "map"])
    assert (refusal.value.code, refusal.value.keys) == ("bad-option", ["map"])


def test_wrong_format_options_are_refused(send):
    """If a file has another separator, the remedy names its option."""
    assert send("", "id;name\n1;ann\n", code=3) == "wrong-separator"
    assert "--separator" in send.answer["error"]["remedy"]
    assert send("", ONE, "--decimal", "x", code=2) == "bad-option"
    assert send("", ONE, "--type", "age=INT", code=2) == "bad-option"


def test_numbers_with_decimal_commas_are_named(tmp_path, monkeypatch, capsys):
    """As for `snapshot`, an undeclared column becomes text, and the note names the option."""
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("id;sum\n1;1,5\n")
    to = ["--to", "127.0.0.1:1", "--schema", "s", "--table", "t", "--key", "id", "--separator", ";"]
    words = ["send", "a.csv", "a.csv", *to, "--dry-run", "--output"]
    assert run([*words, "json"]) == 0
    ((answer,),) = (json.loads(capsys.readouterr().out),)
    assert answer["notes"] == ["column sum is text with decimal commas; read as numbers with --decimal ,"]
    assert run([*words, "table"]) == 0
    assert answer["notes"][0] in " ".join(capsys.readouterr().out.split())
    assert run([*words, "json", "--decimal", ","]) == 0
    assert json.loads(capsys.readouterr().out)[0]["notes"] == []


def test_send_fails_if_the_destination_does_not_answer(tmp_path, monkeypatch, capsys):
    """The command ends, because another run may reach the destination."""
    monkeypatch.setattr(sender, "CONNECT_SECONDS", 0.5)
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(ONE)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        files = [str(tmp_path / name) for name in ("a.csv", "b.csv")]
        words = ["--to", address, "--schema", "crm", "--table", "t", "--key", "id", "--output", "json"]
        assert run(["send", *files, *words]) == 75
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "no-destination"
    assert error["message"] == f"Nothing answers at {address}."
    assert error["remedy"] == "Nothing was sent; start `backstory serve` there, or check `--to`."
