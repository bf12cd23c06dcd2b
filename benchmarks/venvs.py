"""The peers' environments, made by the benchmark and separate from the product's own."""

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "build" / "peers"
SPARK = f"pyspark=={version('pyspark')}"
WANTED = {
    "dbt": ["dbt-core<1.12", "dbt-spark>=1.11,<1.12", SPARK, "pandas<3", "pyarrow"],
    "sqlmesh": ["sqlmesh>=0.236", SPARK, "pandas<3", "pyarrow", "duckdb<2", "setuptools"],
    "dlt": ["dlt[duckdb]>=1.31", "pyarrow", "pandas"],
}
TOLD = {"dbt": ("dbt-core", "dbt-spark"), "sqlmesh": ("sqlmesh",), "dlt": ("dlt", "duckdb")}


@dataclass(frozen=True)
class Environment:
    """The Python of a peer and the versions in it; `failed` is the reason if there is none."""

    python: Path
    versions: dict[str, str]
    failed: str | None = None

    def program(self, name: str) -> str:
        """The path of one of its programs."""
        return str(self.python.with_name(name))


def environment(peer: str) -> Environment:
    """The peer's environment, made if it does not exist."""
    folder = FOLDER / peer
    python = folder / "bin" / "python"
    wanted = "\n".join(WANTED[peer])
    ready = folder / "ready"
    if not ready.exists() or ready.read_text() != wanted:
        uv = str(Path(sys.executable).with_name("uv"))
        for command in (
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--quiet", "--python", str(python), *WANTED[peer]],
        ):
            done = _done(command)
            if done is not None:
                return Environment(python, {}, f"`{' '.join(command[1:3])}` of {WANTED[peer]}: {done}")
        ready.write_text(wanted)
    return Environment(python, _versions(python, TOLD[peer]))


def _done(command: list[str]) -> str | None:
    """The error of a command, or None."""
    system = os.environ | {"UV_SYSTEM_CERTS": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=system)
    except (OSError, subprocess.TimeoutExpired) as stop:
        return str(stop)
    return None if done.returncode == 0 else done.stderr.strip()[-400:]


def _versions(python: Path, packages: tuple[str, ...]) -> dict[str, str]:
    probe = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    told = subprocess.run(
        [str(python), "-c", probe, *packages], capture_output=True, text=True, check=False
    ).stdout.split()
    return dict(zip(packages, told, strict=False))


if __name__ == "__main__":  # makes all environments before any measurement
    for name in WANTED:
        print(name, environment(name))
