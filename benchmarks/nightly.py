"""One run of 200 tables, in seconds for each table; a million rows of PostgreSQL against the same file.

Run `make bench ONLY=nightly`, or `python -m benchmarks.nightly [--scale 0.1] [--rounds 3]`. Each table has
10,000 rows of 8 columns in a CSV of ordinary width. The second part starts a PostgreSQL server, and is
skipped if the server's programs are not installed.
"""

import os
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from pathlib import Path
from typing import Final

import backstory
from benchmarks.asked import Asked, asked, scratch
from benchmarks.quiet import settled
from benchmarks.report import Report, ratio, spread

TABLES, ROWS, MILLION = 200, 10_000, 1_000_000
GOALS: Final = {"1 % changed": 0.5, "nothing changed": 0.2}
PORT: Final = 54_987
HEADER: Final = "id,name,city,amount,ratio,flag,day,note\n"
WIDE: Final = """CREATE TABLE wide AS SELECT id, md5(id::text) AS name, md5('a' || id) AS city,
(random() * 1000000)::numeric(12, 2) AS amount, random() AS ratio, id % 2 = 0 AS flag,
date '2024-01-01' + (id % 300)::int AS day, now() - (id || ' seconds')::interval AS at
FROM generate_series(1, {rows}) id"""


def write(folder: Path, table: int, version: int) -> None:
    """Write the table's file; each version changes the name of one row in a hundred, and no other row."""
    with (folder / f"t{table:03}.csv").open("w") as file:
        file.write(HEADER)
        for row in range(ROWS):
            letters = md5(f"{table}-{row}".encode()).hexdigest()
            newest = version - (row + version) % 100  # the version that changed this row last
            changed = f"v{newest}" if newest > 0 else ""
            amount, share = int(letters[:6], 16) / 100, int(letters[6:12], 16) / 16**6
            flag, day = "true" if row % 2 else "false", f"2024-01-{row % 28 + 1:02}"
            file.write(
                f"{row},{letters[:12]}{changed},{letters[12:20]},{amount},{share:.6f},{flag},{day},{letters}\n"
            )


def many_tables(given: Asked, folder: Path, report: Report) -> None:
    """Measure runs of all tables in one process: the first load, with changes, and without changes."""
    count = max(4, int(TABLES * given.scale))
    files = folder / "files"
    files.mkdir()
    tables = "".join(f"  s.t{table:03}: {{group: all}}\n" for table in range(count))
    group = "groups: {all: {source: '{table}.csv', key: id}}"
    (files / "histories.yaml").write_text(f"format: histories/1\n{group}\ntables:\n{tables}")
    seconds: dict[str, list[float]] = {}
    stages: dict[str, Counter[str]] = {}
    version, most = 0, 0
    with backstory.open(folder / "warehouse") as warehouse:

        def run(name: str) -> None:
            nonlocal most
            settled()
            began = time.perf_counter()
            receipts = warehouse.run(files / "histories.yaml")
            seconds.setdefault(name, []).append((time.perf_counter() - began) / count)
            assert not [each.error for each in receipts if each.error]
            for each in receipts:
                stages.setdefault(name, Counter()).update(each.stages)
            most = max(most, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
            print(f"  {name:16} {seconds[name][-1]:.3f} s a table, {most} MB", flush=True)

        for _ in range(given.rounds):
            for table in range(count):
                write(files, table, version)
            run("1 % changed" if version else "first load")
            run("nothing changed")
            version += 1
        if "1 % changed" not in seconds:
            for table in range(count):
                write(files, table, version)
            run("1 % changed")
    report.data["tables"] = seconds
    lines = [
        [name, _against(name, times), _words(stages[name], count * len(times))]
        for name, times in seconds.items()
    ]
    report.table(
        f"{count} tables of {ROWS:,} rows, side by side",
        ["run", "seconds a table", "of them, in each of four at once"],
        lines,
        f"One process; Python took at most {most} MB.",
    )


def _against(name: str, times: list[float]) -> str:
    goal, told = GOALS.get(name), spread(times)
    middle = sorted(times)[len(times) // 2]
    return told if goal is None else f"{told} ({'holds' if middle <= goal else 'missed'}: {goal})"


def _words(stages: Counter[str], count: int) -> str:
    return ", ".join(f"{name} {seconds / count:.2f}" for name, seconds in stages.items())


@contextmanager
def server(folder: Path) -> Iterator[str | None]:
    """The address of a PostgreSQL server, or None without its programs; it does not run as root."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        yield None
        return
    data = folder / "postgres"
    data.mkdir()
    owner = {"user": "postgres"} if os.getuid() == 0 else {}
    if owner:
        shutil.chown(data, "postgres")
        folder.chmod(0o755)
    control = [f"{programs[-1]}/pg_ctl", "-D", data, "-w", "-o", f"-p {PORT} -k {data}", "-l", data / "log"]
    subprocess.run(
        [f"{programs[-1]}/initdb", "-D", data, "-U", "me", "-A", "trust"],
        check=True,
        capture_output=True,
        cwd=data,
        **owner,
    )
    subprocess.run([*control, "start"], check=True, capture_output=True, cwd=data, **owner)
    try:
        yield f"postgresql://me@localhost:{PORT}/postgres"
    finally:
        subprocess.run([*control, "stop", "-m", "fast"], check=False, capture_output=True, cwd=data, **owner)


def of_postgres(given: Asked, folder: Path, report: Report) -> None:
    """Measure a copy of a table against COPY into a file and a copy of the file; processes take turns."""
    with server(folder) as url:
        if url is None:
            report.say("A table of PostgreSQL", "Not measured: the server's programs are not installed.")
            return
        rows = int(MILLION * given.scale)
        subprocess.run(["psql", url, "-qc", WIDE.format(rows=rows)], check=True)
        seconds: dict[str, list[float]] = {}

        def timed(name: str, *words: object, into: Path | None = None) -> None:
            settled()
            began = time.perf_counter()
            with (into or Path(os.devnull)).open("w") as out:
                subprocess.run([*map(str, words)], check=True, stdout=out, stderr=subprocess.DEVNULL)
            seconds.setdefault(name, []).append(time.perf_counter() - began)
            print(f"  {name:16} {seconds[name][-1]:.2f} s", flush=True)

        snapshot = [Path(sys.executable).parent / "backstory", "snapshot"]
        for number in range(given.rounds):
            file = folder / "wide.csv"
            timed("COPY", "psql", url, "-qc", "COPY wide TO STDOUT (FORMAT csv, HEADER)", into=file)
            for name, source in (("file", file), ("table", f"{url}?table=wide")):
                warehouse = folder / f"{name}-{number}"
                timed(name, *snapshot, source, "--into", "a.b", "--key", "id", "--warehouse", warehouse)
        report.data["postgres"] = seconds
        both = [copy + file for copy, file in zip(seconds["COPY"], seconds["file"], strict=True)]
        times = ratio(both, seconds["table"]) or 0.0
        told = f"{spread(seconds['table'])} = {times:.2f} ({'holds' if times <= 1.3 else 'missed'}: 1.3)"
        report.table(
            f"{rows:,} rows of PostgreSQL, first load",
            ["COPY into a file", "snapshot of the file", "snapshot of the table"],
            [[spread(seconds["COPY"]), spread(seconds["file"]), told]],
            "Whole processes; the last is measured against the first two together.",
        )


def run(given: Asked) -> None:
    """Measure both, and write `nightly.json` and `nightly.md`."""
    report = Report("nightly", "A run of many tables, and tables of a database", given)
    with scratch("nightly") as folder:
        many_tables(given, folder, report)
        report.write()
        of_postgres(given, folder, report)
        report.write()


if __name__ == "__main__":
    sys.exit(run(asked(__doc__)))
