"""Downloaded bytes are unpacked and piped (section 1.5, R70)."""

import errno
import gzip
import struct
import sys
import zipfile

import pytest

from backstory.doors.odf.file_rows import PreparedFile, prepare_file
from backstory.doors.odf.manifest.events import Decompress, Pipe
from backstory.errors import BackstoryError, Failed, Refused, UsageError
from backstory.formats import memory
from backstory.formats.memory import bound_of
from backstory.settings import Rights

ZIP = Decompress(format="Zip")
GZIP = Decompress(format="Gzip")


def python(code: str) -> Pipe:
    return Pipe(command=(sys.executable, "-c", code))


def run(path, steps, *, allow=True, logs=None, limit=None) -> PreparedFile:
    folder = path.parent / "steps"
    folder.mkdir(exist_ok=True)
    return prepare_file(path, path.name, steps, folder, rights=Rights(allow, limit), logs=logs)


def zipped(tmp_path, **entries):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in entries.items():
            archive.writestr(name, text)
    return path


def test_a_file_without_steps_is_unchanged(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a")

    assert PreparedFile(path, "a.csv", bound_of(path)) == run(path, [])


def test_b29_gzip_round_trip(tmp_path):
    """B29: This includes several members."""
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"city\nA\n") + gzip.compress(b"B\n"))

    made = run(path, [GZIP])

    assert b"city\nA\nB\n" == made.path.read_bytes()
    assert "a.csv" == made.name


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"city\n",
        gzip.compress(b"city\n", mtime=0)[:-3],
        gzip.compress(b"city\n", mtime=0)[:-8] + bytes(8),
        gzip.compress(b"city\n", mtime=0) + b"more",
    ],
)
def test_a_broken_gzip_is_refused(tmp_path, content):
    path = tmp_path / "a.gz"
    path.write_bytes(content)

    with pytest.raises(Refused, match=r"a\.gz") as stop:
        run(path, [GZIP])

    assert "broken-archive" == stop.value.code


def test_a_gzip_has_no_entries(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"city\n"))

    with pytest.raises(UsageError, match="subPath"):
        run(path, [Decompress(format="Gzip", subPath="a")])


def test_the_first_file_of_a_zip_is_used(tmp_path):
    path = zipped(tmp_path, **{"folder/": "", "__MACOSX/._b.csv": "x", "folder/b.csv": "b", "c.csv": "c"})

    made = run(path, [ZIP])

    assert ("b", "a.zip/folder/b.csv") == (made.path.read_text(), made.name)


@pytest.mark.parametrize("sub_path", ["folder/c.csv", "*/c.csv", "folder/[c]*", "*c.csv"])
def test_sub_path_is_exact_or_a_glob(tmp_path, sub_path):
    """R70, D26: subPath is an exact name or a glob."""
    path = zipped(tmp_path, **{"b.csv": "b", "folder/c.csv": "c"})

    assert "c" == run(path, [Decompress(format="Zip", subPath=sub_path)]).path.read_text()


def test_an_exact_name_wins_over_a_glob(tmp_path):
    path = zipped(tmp_path, **{"[b].csv": "exact", "b.csv": "glob"})

    assert "exact" == run(path, [Decompress(format="Zip", subPath="[b].csv")]).path.read_text()


@pytest.mark.parametrize(
    ("sub_path", "listed"), [("*.txt", "`b.csv`, `c.csv`"), ("*.csv", "`b.csv`, `c.csv`")]
)
def test_a_sub_path_must_match_exactly_one_entry(tmp_path, sub_path, listed):
    path = zipped(tmp_path, **{"b.csv": "b", "c.csv": "c"})

    with pytest.raises(Refused) as stop:
        run(path, [Decompress(format="Zip", subPath=sub_path)])

    assert listed in stop.value.message
    assert sub_path in stop.value.message


def test_a_path_in_a_zip_cannot_leave_the_folder(tmp_path):
    path = zipped(tmp_path, **{"../../outside.csv": "b"})

    made = run(path, [ZIP])

    assert tmp_path / "steps" == made.path.parent
    assert {"a.zip", "steps"} == {each.name for each in tmp_path.iterdir()}


def broken_zips(tmp_path):
    whole = zipped(tmp_path, **{"b.csv": "b" * 1000}).read_bytes()
    flagged = bytearray(whole)
    struct.pack_into("<H", flagged, 6, 1)
    struct.pack_into("<H", flagged, whole.index(b"PK\x01\x02") + 8, 1)
    method = bytearray(whole)
    struct.pack_into("<H", method, 8, 9)
    struct.pack_into("<H", method, whole.index(b"PK\x01\x02") + 10, 9)
    return {
        "empty": b"",
        "text": b"city\n",
        "half": whole[: len(whole) // 2],
        "bytes": whole[:36] + bytes([whole[36] ^ 0xFF]) + whole[37:],
        "encrypted": bytes(flagged),
        "method": bytes(method),
        "no entry": b"PK\x05\x06" + bytes(18),
    }


@pytest.mark.parametrize("kind", ["empty", "text", "half", "bytes", "encrypted", "method", "no entry"])
def test_a_broken_zip_is_refused(tmp_path, kind):
    content = broken_zips(tmp_path)[kind]
    path = tmp_path / "a.zip"
    path.write_bytes(content)

    with pytest.raises(Refused, match=r"a\.zip") as stop:
        run(path, [ZIP])

    assert "broken-archive" == stop.value.code


def test_b27_a_pipe_reads_and_writes(tmp_path):
    """B27: An array of three objects becomes three lines."""
    path = tmp_path / "a.json"
    path.write_text('[{"a":1},{"a":2},{"a":3}]')
    lines = "import json,sys; [print(json.dumps(each)) for each in json.load(sys.stdin)]"

    made = run(path, [python(lines)])

    assert ['{"a": 1}', '{"a": 2}', '{"a": 3}'] == made.path.read_text().splitlines()
    assert made.name.startswith("a.json after ")


def test_steps_go_from_left_to_right(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("b.csv.gz", gzip.compress(b"city\n"))

    upper = python("import sys; sys.stdout.write(sys.stdin.read().upper())")

    assert "CITY\n" == run(path, [ZIP, GZIP, upper]).path.read_text()


def test_a_command_needs_permission(tmp_path):
    path = tmp_path / "a"
    path.write_text("a")

    with pytest.raises(UsageError, match=r"allow-commands = true.*\[odf\].*backstory.toml") as stop:
        run(path, [python("open('ran', 'w')")], allow=False)

    assert "commands-not-allowed" == stop.value.code


@pytest.mark.parametrize("program", ["no-such-program-here", "/etc/passwd", "bad\0name"])
def test_a_command_that_cannot_run(tmp_path, program):
    path = tmp_path / "a"
    path.write_text("a")

    with pytest.raises(UsageError, match="cannot be run"):
        run(path, [Pipe(command=(program,))])


def test_a_failed_command_is_reported_with_the_end_of_its_log(tmp_path):
    path = tmp_path / "a"
    path.write_text("a")
    failing = "import sys; [print('line', n, file=sys.stderr) for n in range(1000)]; sys.exit(7)"

    with pytest.raises(Failed) as stop:
        run(path, [python(failing)])

    assert "ended with 7 on a:" in stop.value.message
    assert "line 999" in stop.value.message
    assert "line 900\n" not in stop.value.message
    assert ".log" not in stop.value.remedy


def test_the_full_output_of_a_failed_command_is_kept(tmp_path):
    """1.5: The output is kept in a permanent folder. The newest failure of a step replaces the former."""
    path = tmp_path / "a"
    path.write_text("a")
    logs = tmp_path / "cache" / "demo"
    failing = "import sys; [print(sys.argv[1], n, file=sys.stderr) for n in range(1000)]; sys.exit(7)"

    for word in ("once", "again"):
        step = Pipe(command=(sys.executable, "-c", failing, word))
        with pytest.raises(Failed) as stop:
            run(path, [python("print(1)"), step], logs=logs)

    assert stop.value.remedy == f"Its full output is in {logs / 'step-2.log'}."
    assert [each.name for each in logs.iterdir()] == ["step-2.log"]
    assert (logs / "step-2.log").read_text().startswith("again 0\nagain 1\n")


def test_an_unwritable_log_is_not_mentioned(tmp_path):
    path = tmp_path / "a"
    path.write_text("a")

    with pytest.raises(Failed, match="ended with 1") as stop:
        run(path, [python("raise SystemExit(1)")], logs=path / "no folder")

    assert ".log" not in stop.value.remedy


def test_a_command_runs_without_a_shell_and_may_ignore_its_input(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"a" * 10_000_000)

    assert "$HOME;x" == run(path, [Pipe(command=("printf", "%s", "$HOME;x"))]).path.read_text()


MIB = 1 << 20


def packed(tmp_path, kind, size):
    """A packed file that unpacks to this number of bytes, and its step."""
    path = tmp_path / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("b.csv", bytes(size))
        return path, ZIP
    path.write_bytes(gzip.compress(bytes(size)))
    return path, GZIP if kind == "gz" else python(f"import sys; sys.stdout.write('x' * {size})")


@pytest.mark.parametrize("kind", ["gz", "zip", "pipe"])
def test_output_larger_than_the_limit_is_refused(tmp_path, kind):
    """No byte of it is kept, and the limit can be raised."""
    path, step = packed(tmp_path, kind, 3 * MIB)

    with pytest.raises(Refused, match="more than 2,097,152 bytes") as stop:
        run(path, [step], limit=2 * MIB)

    assert ("unpacks-too-large", True) == (stop.value.code, "`unpacked-limit`" in stop.value.remedy)
    assert 0 == (tmp_path / "steps" / "step-1").stat().st_size
    assert 3 * MIB == run(path, [step], limit=3 * MIB).path.stat().st_size


def test_an_endless_pipe_is_stopped(tmp_path):
    path = tmp_path / "a"
    path.write_text("a")

    with pytest.raises(Refused, match="a after yes unpacks to more"):
        run(path, [Pipe(command=("yes",))], limit=MIB)


def test_the_limit_of_all_steps_depends_on_the_delivered_file(tmp_path, monkeypatch):
    """The default limit is a gibibyte, or a hundred times the delivered file, for all steps together."""
    monkeypatch.setattr(memory, "BOMB_BYTES", MIB)
    path = tmp_path / "a.gz.gz"
    path.write_bytes(gzip.compress(gzip.compress(bytes(200 * MIB), mtime=0)))

    assert path.stat().st_size * 100 < 200 * MIB
    with pytest.raises(Refused, match=r"a\.gz unpacks to more than"):
        run(path, [GZIP, GZIP])


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk-full", 75),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk-full", 75),
        (PermissionError(errno.EACCES, "Permission denied"), "file-failed", 1),
    ],
)
def test_disk_errors_are_reported_with_code_and_exit_code(error, code, exit_code):
    with pytest.raises(BackstoryError) as stop, memory.translate_disk_errors("a.csv"):
        raise error

    assert (code, exit_code) == (stop.value.code, stop.value.exit_code)
    assert (code == "disk-full", True) == ("TMPDIR" in stop.value.remedy, bool(stop.value.message))
