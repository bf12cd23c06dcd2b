"""A real PostgreSQL server, started for the run."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest


def program(name: str) -> str:
    """A program of the PostgreSQL server: Debian keeps them out of the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    path = str(found[-1]) if found else shutil.which(name)
    assert path, f"{name} is not installed: scripts/setup.sh --postgresql"
    return path


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory):
    """The JDBC address of an empty database; the server refuses to run as root, so it does not."""
    folder = tmp_path_factory.mktemp("postgresql")
    owner = {"user": "postgres"} if os.getuid() == 0 else {}
    if owner:
        shutil.chown(folder, "postgres")
        for parent in (folder, *folder.parents[:3]):
            parent.chmod(0o755)
    data, log = folder / "data", folder / "log"
    run = {"check": True, "capture_output": True, "cwd": folder, **owner}
    subprocess.run([program("initdb"), "-D", data, "-U", "backstory", "-A", "trust"], **run)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    control = program("pg_ctl")
    subprocess.run([control, "-D", data, "-l", log, "-w", "-o", options, "start"], **run)
    yield f"jdbc:postgresql://127.0.0.1:{port}/postgres?user=backstory"
    subprocess.run([control, "-D", data, "-m", "immediate", "stop"], **run)
