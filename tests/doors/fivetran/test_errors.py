"""The answer to an invalid request is a task that names the place, and the table is unchanged: 3, 9, 11, 52,
63, F17."""

import base64
import os
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from destination import LIVE, PLAIN, Place, gives, refusal, serving, status

from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.formats.batch_file import BatchFile, Compression
from backstory.model.types import ColumnType
from backstory.testing.sender import AS_FIVETRAN, Sender, seal

ROWS = "id v n synced \n 1 a 1 T1"
CANARY = "canary-5b1e"
WHOLE = f'id,v\n1,{CANARY}\n2,"two\nlines"\n3,x\n'
ZSTD, GZIP = (replace(PLAIN, compression=c) for c in (Compression.ZSTD, Compression.GZIP))


@pytest.fixture
def place(sender, store, schema):
    return Place.made(sender, store, schema, LIVE, ROWS)


def task_of(place, encoding, *files, kind="update"):
    """The task for these files. It must contain no value and no key."""
    text = refusal(place.sent(encoding=encoding).reply(**{kind: list(files)}))
    keys = [f.key for f in files if f.key]
    secrets = [CANARY, *(form(key) for key in keys for form in (bytes.hex, repr, _base64))]
    assert not any(secret in text for secret in secrets), text
    return text


def _base64(key):
    return base64.b64encode(key).decode()


def cut(file, size):
    content = file.path.read_bytes()
    file.path.write_bytes(content[:size] if size > 0 else content[: len(content) + size])
    return file


def test_unreadable_batch_files_are_refused_by_name(place):
    """52: A wrong, missing or short key, a truncated or missing file, a folder, and wrong compression: each
    task names the file."""
    folder, metadata = place.sender.folder, place.metadata()
    noise = f"id,v\n1,{os.urandom(40000).hex()}\n".encode()

    def sealed(content=WHOLE.encode(), encoding=AS_FIVETRAN):
        return seal(folder, content, encoding)

    missing = sealed()
    missing.path.unlink()
    for number, (encoding, file) in enumerate(
        [
            (AS_FIVETRAN, replace(sealed(), key=os.urandom(32))),
            (AS_FIVETRAN, replace(sealed(), key=None)),
            (AS_FIVETRAN, replace(sealed(), key=b"k" * 16)),
            (AS_FIVETRAN, cut(sealed(), -16)),
            (AS_FIVETRAN, cut(sealed(), -5)),
            (AS_FIVETRAN, cut(sealed(), 16)),
            (AS_FIVETRAN, cut(sealed(noise), 20000)),
            (replace(AS_FIVETRAN, compression=Compression.OFF), sealed()),
            (AS_FIVETRAN, missing),
            (AS_FIVETRAN, BatchFile(folder, b"k" * 32)),
            (PLAIN, BatchFile(folder / "no" / "such.csv")),
            (PLAIN, sealed()),
            (ZSTD, sealed(encoding=PLAIN)),
            (GZIP, sealed(encoding=PLAIN)),
            (ZSTD, cut(sealed(noise, ZSTD), 20000)),
            (ZSTD, cut(sealed(encoding=ZSTD), -3)),
            (GZIP, cut(sealed(noise, GZIP), 20000)),
            (GZIP, cut(sealed(encoding=GZIP), -3)),
        ]
    ):
        assert file.name in task_of(place, encoding, file), number
    assert gives(ROWS) == place.rows()
    assert place.metadata() == metadata


@pytest.mark.parametrize("way", [{"compression": 3}, {"encryption": 2}], ids=["compression", "encryption"])
def test_unknown_file_encodings_are_refused(place, way):
    """52, F17: An unknown compression or cipher is answered with a task that names it."""
    [file] = place.sent(encoding=PLAIN).files("id v \n 1 z")
    params = sdk.FileParams(null_string="-", unmodified_string=".", **way)
    request = sdk.WriteBatchRequest(
        schema_name=place.schema, table=place.table, update_files=[str(file.path)], file_params=params
    )
    [(kind, number)] = way.items()
    assert f"{kind} {number}" in refusal(place.sender.stub.WriteBatch(request))
    assert gives(ROWS) == place.rows()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f"{WHOLE}4,x,{CANARY}\n", ["line 6"]),
        (f"{WHOLE}{CANARY}\n", ["line 6"]),
        (f'{WHOLE}4,"{CANARY}\n', ["line 6"]),
        (f'{WHOLE}4,"{CANARY}"x\n', ["line 6"]),
        (WHOLE.encode() + b"4,\xff\xfe\n", ["line 6"]),
        (f"id,w\n1,{CANARY}\n", ["w"]),
        (f"id,v,v\n1,{CANARY},x\n", ["v"]),
        (f"v\n{CANARY}\n", ["id"]),
        (f"id,v\n{PLAIN.unmodified_string},{CANARY}\n", ["row 1", "id"]),
        (f'id,v,n\n1,"{CANARY}\n",5\n2,x,{CANARY}\n', ["line 4", "n", "BIGINT"]),
        (f"id,v,n\n1,x,y\n2,{CANARY},3\n", ["line 2", "n", "BIGINT"]),
    ],
)
def test_malformed_csv_is_refused_without_its_values(place, content, words):
    """63: For broken CSV, wrong columns or an unreadable cell, the task names file, line and column, but not
    the value."""
    metadata = place.metadata()
    content = content if isinstance(content, bytes) else content.encode()
    file = seal(place.sender.folder, content, PLAIN)
    text = task_of(place, PLAIN, file)
    assert all(word in text for word in [file.name, *words]), text
    assert place.metadata() == metadata


def test_delete_files_without_a_key_are_refused(place):
    """2.8, F17: A delete file without the key column is refused, not treated as empty."""
    for text in ("v \n x", "v n \n x 1"):
        [file] = place.files(text)
        task = refusal(place.reply(delete=[file]))
        assert f"{file.name}, line 1: the header lacks id" in task
    assert gives(ROWS) == place.rows()


def test_a_replaced_row_has_no_unmodified_cells(place):
    """2.8: An unmodified cell in a replace file is answered with a task, and no file of the request is
    applied."""
    good = place.files("id v n synced \n 7 a 1 T2")
    bad = place.files("id v n synced \n 8 . 1 T2")
    text = refusal(place.reply(replace=good + bad, delete=place.files("id \n 1")))
    assert bad[0].name in text
    assert "v" in text
    assert gives(ROWS) == place.rows()


BAD_CELLS = {
    "BOOLEAN": ["yes", "1", " true"],
    "SHORT": ["32768", "-32769", "1.5", "x"],
    "INT": ["2147483648", "1e3"],
    "LONG": ["9223372036854775808", "0x10", "1_000"],
    "DECIMAL(5,2)": ["1000", "999.995", "1,5", "NaN"],
    "FLOAT": ["1e39", "x"],
    "DOUBLE": ["1e309", "1,5"],
    "NAIVE_DATE": ["2024-02-30", "0000-01-01", "10000-01-01", "01/02/2024", "2024-01-01T00:00:00"],
    "NAIVE_DATETIME": ["2024-01-01T25:00:00", "0000-01-01T00:00:00", "noon"],
    "UTC_DATETIME": ["2024-13-01T00:00:00Z", "2024-01-01T00:00:00+99:00", "1704067200"],
    "NAIVE_TIME": ["24:00:00", "10:60", "noon"],
}


def test_cells_of_another_type(sender, store, schema):
    """63: A cell of another type is refused with line, column and type. It never becomes NULL or another
    value."""
    names = {f"c{i}": type_ for i, type_ in enumerate(BAD_CELLS)}
    columns = " ".join(f"{name}:{type_}" for name, type_ in names.items())
    place = Place.made(sender, store, schema, f"id:LONG* {columns} synced")
    taken = []
    for name, type_ in names.items():
        for cell in BAD_CELLS[type_]:
            content = f'{name},id\n{PLAIN.null_string},1\n"{cell}",2\n'
            file = seal(sender.folder, content.encode(), PLAIN)
            reply = place.sent(encoding=PLAIN).reply(replace=[file])
            if reply.WhichOneof("response") == "success":
                taken.append((type_, cell))
            else:
                text = refusal(reply)
                assert all(
                    word in text for word in (file.name, "line 3", name, str(ColumnType.parse(type_)))
                ), text
    assert taken == []
    assert place.snapshots() == []


@pytest.mark.tables_on("iceberg")
def test_store_faults_are_answered_with_a_status(sender, store, schema):
    """22, 11, 12: If a table's metadata is lost, the answer is a status, not `not_found`. The server
    continues."""
    place = Place.made(sender, store, schema, LIVE, ROWS)
    lost = Path(place.metadata().removeprefix("file:"))
    backup = lost.rename(lost.with_suffix(".kept"))
    stub, about = sender.stub, {"schema_name": schema}
    name = place.table.name
    for call, request in [
        (stub.DescribeTable, sdk.DescribeTableRequest(table_name=name, **about)),
        (stub.AlterTable, sdk.AlterTableRequest(table=place.table, **about)),
        (
            stub.Truncate,
            sdk.TruncateRequest(table_name=name, synced_column="v", utc_delete_before={}, **about),
        ),
        (stub.WriteBatch, sdk.WriteBatchRequest(table=place.table, **about)),
    ]:
        error = status(call, request)
        assert error is not None
        assert error.code() in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}
        assert 0 < len(error.details().encode()) <= 8000
    backup.rename(lost)
    assert gives(ROWS) == place.rows()
    place.write(update="id v \n 1 x")
    assert place.rows()[0]["v"] == "x"


def test_batch_files_outside_their_folder_are_refused(store, schema, tmp_path):
    """7.3: If a folder for batch files is set, no file outside of it is read, by any path or link."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    with serving({"backstory": store}, batch_folder=inside) as address:
        place = Place.made(Sender.to(address, inside, encoding=PLAIN), store, schema, LIVE, ROWS)
        [stranger] = place.sent(folder=outside).files("id v \n 1 stolen")
        (inside / "link").symlink_to(stranger.path)
        (outside / "link").symlink_to(inside)
        for path in (stranger.path, inside / "link", inside / ".." / "outside" / stranger.name):
            text = refusal(place.reply(replace=[BatchFile(path)]))
            assert path.name in text
            assert "folder" in text
        [file] = place.files("id v n synced \n 1 b 1 T1")
        place.send(replace=[BatchFile(outside / "link" / file.name, file.key)])
        assert gives("id v n synced \n 1 b 1 T1") == place.rows()
