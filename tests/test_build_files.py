"""The files that Fivetran's build needs in the repository's root (section 7.8)."""

import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_build_sh_is_executable_but_not_world_writable():
    mode = (ROOT / "build.sh").stat().st_mode
    assert mode & stat.S_IXUSR
    assert not mode & stat.S_IWOTH


def test_requirements_name_extras_that_exist():
    """The file contains nothing else, so versions are in one place."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    [line] = [line for line in lines if not line.startswith("#")]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(line.removeprefix(".[").removesuffix("]").split(",")) <= set(extras)


@pytest.mark.process
def test_main_py_is_the_server():
    """main.py has the help of `backstory serve`."""
    process = subprocess.run(
        [sys.executable, ROOT / "main.py", "--help"], capture_output=True, text=True, check=True
    )
    assert "backstory serve" in process.stdout
    assert "--tls-cert" in process.stdout


@pytest.mark.process
def test_build_sh_regenerates_the_checked_in_stubs(tmp_path):
    """The script writes the protos, and the generated stubs equal the checked-in ones."""
    copy = tmp_path / "copy"
    for name in ("src/backstory/doors/fivetran/wire", "scripts"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("build.sh", "pyproject.toml"):
        shutil.copy(ROOT / name, copy / name)
    wire = copy / "src/backstory/doors/fivetran/wire"
    before = {path.name: path.read_bytes() for path in wire.iterdir() if path.is_file()}
    (wire / "common_pb2.py").write_text("old")
    subprocess.run([copy / "build.sh"], env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"}, check=True)
    assert {path.name: path.read_bytes() for path in wire.iterdir() if path.is_file()} == before
    assert {path.name for path in (copy / "protos").iterdir()} == {"common.proto", "destination_sdk.proto"}
