"""Where a file is opened, with how few requests, and with which of the Java FileIO's properties."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backstory.stores import table_files
from backstory.stores.table_files import (
    LARGEST_GAP,
    JavaOnlyFile,
    RemoteFile,
    TableFiles,
    merge_spans,
    open_parquet,
    s3_options,
)

SECRET = "canary-3c1f"
REACHED = {"s3.endpoint": "http://127.0.0.1:1", "s3.access-key-id": "a", "s3.secret-access-key": SECRET}
ROWS, GROUP = 90_000, 30_000


class Counted:
    """A local file that records the requested parts, which Arrow's files cannot do."""

    def __init__(self, path):
        self.file, self.parts = pa.OSFile(str(path)), []
        self.size, self.close = self.file.size, self.file.close

    def read_at(self, length, offset):
        self.parts.append((offset, offset + length))
        return self.file.read_at(length, offset)


@pytest.fixture
def large(tmp_path):
    """A file of three row groups that is too large to be read whole."""
    numbers = random.Random(1)
    texts = [numbers.randbytes(20).hex() for _ in range(ROWS)]
    parts = pa.array([{"x": n, "y": str(n)} for n in range(ROWS)])
    pq.write_table(
        pa.table({"k": range(ROWS), "t": texts, "s": parts}), tmp_path / "f.parquet", row_group_size=GROUP
    )
    return tmp_path / "f.parquet"


def test_each_part_of_a_remote_file_is_requested_once(large):
    """Column by column and group by group, rows are equal, with one request for the footer and few for the
    rest."""
    counted, whole = Counted(large), pq.read_table(large)
    file = RemoteFile(counted)
    assert not file.is_whole
    with open_parquet(file) as opened:
        assert opened.read_row_groups([1], columns=["k"])["k"].equals(whole["k"].slice(GROUP, GROUP))
        parts = opened.read_row_groups([1, 2], columns=["t", "s.y"])
        assert parts.equals(pq.ParquetFile(large).read_row_groups([1, 2], columns=["t", "s.y"]))
    with open_parquet(file) as opened:
        assert opened.read_row_groups([0]).equals(whole.slice(0, GROUP))
    assert len(counted.parts) <= 6
    spans = sorted(counted.parts)
    endings = [span for span in spans if span[1] == file.size]
    assert len(endings) == 1, "the ending is read once"


def test_a_small_file_is_requested_once(tmp_path):
    """This holds for a later read as bytes, as a stream or as Parquet."""
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "f.parquet")
    counted = Counted(tmp_path / "f.parquet")
    file = RemoteFile(counted)
    for _ in range(2):
        with open_parquet(file) as opened:
            assert opened.read_row_groups([0])["k"].to_pylist() == [1, 2]
        with file.open() as stream:
            assert stream.read() == (tmp_path / "f.parquet").read_bytes()
    assert file.read(file.size - 4, 100) == b"PAR1"
    assert counted.parts == [(0, file.size)]


def test_a_large_file_is_read_at_any_position(large):
    """Reads at any position return the same bytes, up to the end."""
    content, file = large.read_bytes(), RemoteFile(Counted(large))
    with file.open() as stream:
        for place in (0, 17, 1 << 20, len(content) - 3):
            stream.seek(place)
            assert stream.read(5) == content[place : place + 5]
        assert (stream.seek(0, 2), stream.read()) == (len(content), b"")
        stream.seek(0)
        assert stream.read() == content


def test_neighbouring_parts_are_read_in_one_request():
    """A small gap costs less than another request. Distant parts are requested separately."""
    assert merge_spans(
        [
            (10, 20),
            (0, 5),
            (20 + LARGEST_GAP, 30 + LARGEST_GAP),
            (100 + 3 * LARGEST_GAP, 101 + 3 * LARGEST_GAP),
        ],
        LARGEST_GAP,
    ) == [
        (0, 30 + LARGEST_GAP),
        (100 + 3 * LARGEST_GAP, 101 + 3 * LARGEST_GAP),
    ]


def test_a_large_column_is_read_whole_in_several_requests(large, monkeypatch):
    """Requests have a limited size and run in parallel. A column may span several."""
    monkeypatch.setattr(table_files, "PIECE", 100_000)
    counted = Counted(large)
    with open_parquet(RemoteFile(counted)) as opened:
        assert opened.read_row_groups([0, 1, 2]).equals(pq.read_table(large))
    assert max(end - start for start, end in counted.parts) <= 100_000


@pytest.mark.parametrize(
    "more",
    [
        {"s3.sse.type": "custom"},
        {"s3.remote-signing-enabled": "true"},
        {"client.factory": "com.example.Factory"},
        {"client.assume-role.arn": "arn"},
        {"s3.access-points.bucket": "arn"},
        {"http-client.proxy-endpoint": "http://proxy"},
        {"s3.unheard-of": "x"},
        {"s3.endpoint": "http://host/below"},
        {"s3.session-token": "t", "s3.access-key-id": None, "s3.secret-access-key": None},
    ],
)
def test_properties_without_a_counterpart_are_left_to_java(more):
    """A property that could change the bytes or the access is never ignored."""
    properties = {name: value for name, value in {**REACHED, **more}.items() if value is not None}
    assert s3_options(properties) is None
    with pytest.raises(JavaOnlyFile):
        TableFiles(lambda: properties)("s3://bucket/file")


def test_properties_that_only_affect_writing_or_speed_are_ignored():
    """Retries, server encryption and part sizes do not change the bytes."""
    more = {
        "s3.sse.type": "kms",
        "s3.retry.num-retries": "9",
        "s3.multipart.part-size-bytes": "1",
        "s3.acl": "private",
        "s3.remote-signing-enabled": "false",
        "warehouse": "s3://b/w",
        "io-impl": "x",
    }
    assert s3_options({**REACHED, **more}) == s3_options(REACHED)


def test_no_secret_is_in_a_representation_or_an_error():
    """Neither the representation of an opener nor its errors contain a credential."""
    options = s3_options(REACHED | {"s3.session-token": SECRET})
    assert SECRET not in repr(options)
    with pytest.raises(OSError, match="canary-bucket") as wrong:
        TableFiles(lambda: REACHED)("s3://canary-bucket/f")
    assert SECRET not in str(wrong.value)


@pytest.mark.parametrize("location", ["gs://b/f", "hdfs://h/f", "s3://b/f?x=1", "s3://b/f#x"])
def test_other_storages_and_ambiguous_names_are_left_to_other_openers(location):
    """They are never guessed."""
    with pytest.raises(JavaOnlyFile):
        TableFiles(lambda: REACHED)(location)


def test_opening_a_file_is_retried_after_an_error(tmp_path):
    """A temporary error is not cached."""
    content = tmp_path / "f"
    tries = []

    def other(location):
        tries.append(location)
        if len(tries) == 1:
            raise OSError("away")
        return pa.OSFile(str(content))

    content.write_bytes(b"here")
    files = TableFiles(others=other)
    files.open_ahead(["gs://b/f", str(content)])
    with pytest.raises(OSError, match="away"):
        files("gs://b/f")
    for _ in range(2):
        with files("gs://b/f") as file:
            assert file.read() == b"here"
    assert len(tries) == 2


def test_kept_files_have_a_limited_number_of_bytes(tmp_path, monkeypatch):
    """Bytes beyond the limit are read again."""
    (tmp_path / "f").write_bytes(bytes(100))
    monkeypatch.setattr(table_files, "KEPT", 150)
    tries = []
    files = TableFiles(others=lambda location: tries.append(location) or pa.OSFile(str(tmp_path / "f")))
    for name in ("gs://a", "gs://b", "gs://a", "gs://b"):
        with files(name) as file:
            assert len(file.read()) == 100
    assert tries == ["gs://a", "gs://b", "gs://b"]
