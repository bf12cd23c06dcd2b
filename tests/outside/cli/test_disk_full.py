"""`backstory snapshot` on a full disk."""

import json
import os
import random
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from commands import command, configure
from copied_warehouses import digests
from serving import SECONDS, within

pytestmark = pytest.mark.process

MOUNT = "mount -t tmpfs -o size=6m tmpfs disk && exec sleep infinity"
ROWS = 2000
# Room for the catalog's own records, but not for a copy.
LEFT = 48 * 1024


def copy(number):
    """A full copy with a hundred bytes per row that do not compress well."""
    chance = random.Random(number)
    return "id,v\n" + "".join(f"{each},{chance.randbytes(50).hex()}\n" for each in range(ROWS))


@pytest.fixture
def disk(tmp_path):
    """A small file system in a separate mount namespace, with its path outside and inside.

    On most machines this needs no permissions. Without namespaces both are None.
    """
    (tmp_path / "disk").mkdir()
    words = ["unshare", "--map-root-user", "--mount", "sh", "-c", MOUNT]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.DEVNULL) as holder:
        seen = Path(f"/proc/{holder.pid}/root{tmp_path}/disk")
        outside = (tmp_path / "disk").stat().st_dev

        def mounted():
            with suppress(OSError):  # the process may have ended
                return seen.stat().st_dev != outside

        within(SECONDS, lambda: holder.poll() is not None or mounted())
        there = ["sh", "-c", 'cd "$0" && exec "$@"', tmp_path]
        inside = ["nsenter", "-t", holder.pid, "--user", "--mount", "--preserve-credentials", *there]
        try:
            yield (seen, inside) if holder.poll() is None else None
        finally:
            holder.kill()


def test_a_full_disk_is_reported_and_leaves_the_table_unchanged(tmp_path, disk):
    """The error is `disk-full` with code 75, and no file is left. Without namespaces, the size of files is
    limited."""
    configure(tmp_path)
    seen, inside = disk or (tmp_path / "disk", ["prlimit", f"--fsize={LEFT}"])
    words = ["snapshot", "copy.csv", "--into", "crm.t", "--key", "id", "--warehouse", "disk/warehouse"]
    (tmp_path / "copy.csv").write_text(copy(1))
    with command(tmp_path, *words, before=inside if disk else ()) as first:
        code, output, warned = first.end()
        assert code == 0, (output, warned)
    warehouse = seen / "warehouse"
    before = digests(warehouse)
    if disk:
        free = os.statvfs(seen)
        (seen / "filler").write_bytes(b"x" * (free.f_bavail * free.f_frsize - LEFT))
    (tmp_path / "copy.csv").write_text(copy(2))
    with command(tmp_path, *words, before=inside) as full:
        code, output, warned = full.end()
    error = json.loads(output)["error"]
    assert "Traceback" not in warned
    assert digests(warehouse) == before
    if disk:
        assert (code, error["code"]) == (75, "disk-full")
        assert f"{tmp_path}/disk/warehouse" in error["message"]
        assert "make room" in error["remedy"]
    else:
        assert code in {1, 75}
        assert "crm.t" in error["message"]
