"""Project files: `init`, `run`, `runs`, `fresh`, `schema`."""

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final, Literal

from backstory.cli.answers import answer, open_warehouse
from backstory.cli.options import DEFAULTS, Limit, Names, Options, parse_names, with_flags
from backstory.cli.output import (
    NOTHING_WRITTEN,
    console,
    drop_idle_columns,
    error_in_fields,
    errors,
    in_fields,
    in_flags,
    print_error,
    print_line,
    short_time,
)
from backstory.errors import Violated
from backstory.formats.memory import Memory
from backstory.model.receipt import exit_code
from backstory.projects.options import RunRequest, RunWatcher
from backstory.sources.databases.address import is_database, parse_server
from backstory.sources.databases.copies import declared_keys

if TYPE_CHECKING:
    from backstory.projects.declarations import Declaration
    from backstory.projects.log import Rows, RunReceipt
    from backstory.stores.metadata.table_metadata import Catalog

_OUTCOMES: Final = ("changed", "unchanged", "refused", "failed", "not_begun")
RUNS: Final = ("run_id", "started_at", "seconds", *_OUTCOMES, "ended")
OF_A_RUN: Final = (
    "name",
    "kind",
    "status",
    "started_at",
    "seconds",
    "attempts",
    "counts",
    "error_code",
)
NAMES_SHOWN: Final = 4  # running declarations after the bar
FRESH: Final = ("name", "last_delivery", "age_hours", "expected_every_hours", "due", "late")


@with_flags(RunRequest)
def run(file: Path | None = None, /, *, options: Options = DEFAULTS, **words: Any) -> int:
    """Deliver the tables, feeds, models and datasets of a project file, several at once.

    Each table has its own commit. A delivery begins after the deliveries that it needs have succeeded. It
    needs the delivery of its source (`table:schema.table`), of its model's input, and of each name in
    `after`. A failure does not stop the others. A delivery that failed temporarily is tried again. Other
    failures are printed with their remedies. After SIGTERM or Ctrl-C, running deliveries finish and no others
    start.

    Example: `backstory run --select tag:nightly`

    Args:
        file: Project file. Default: histories.yaml.
    """
    from backstory.projects.declarations import read_project

    request = RunRequest(file, **words)
    project = read_project(file, request.select)  # raises its errors before Spark starts
    with open_warehouse(options) as warehouse, _stop_on_signals() as stop, watch_run(options) as watcher:
        from backstory.projects.running import run_project  # loads pyspark

        receipts = run_project(warehouse.store, project, request, warehouse.rights, stop, watcher)
    show_receipts(receipts, options, dry_run=request.dry_run)
    if request.failed and not receipts:
        options.remark("No declaration failed in its last run.")
    return exit_code(receipts)


@contextmanager
def _stop_on_signals() -> Iterator[Event]:
    """An event that is set by SIGTERM or by the first Ctrl-C. The next signal interrupts the process."""
    stop, before = Event(), dict[int, Any]()

    def end(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, before[number])

    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        before[stop_signal] = signal.signal(stop_signal, end)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def watch_run(options: Options) -> Iterator[RunWatcher]:
    """A watcher of a run. On a terminal, it shows the number of ended declarations, and the running ones."""
    if options.quiet or options.verbose or not errors.is_terminal:
        yield RunWatcher()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    words = TextColumn("{task.fields[rows]:,} rows changed  {task.fields[names]}")
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), words)
    with Progress(*columns, console=errors, transient=True, redirect_stdout=False) as bar:
        task, running, lock, rows = bar.add_task("", total=None, rows=0, names=""), list[str](), Lock(), [0]

        def draw(advance: int = 0) -> None:
            names = ", ".join(running[:NAMES_SHOWN]) + (" ..." if len(running) > NAMES_SHOWN else "")
            bar.update(task, advance=advance, rows=rows[0], names=names)

        def on_selection(declarations: "Sequence[Declaration]") -> None:
            bar.update(task, total=len(declarations))

        def on_begin(name: str) -> None:
            with lock:
                running.append(name)
                draw()

        def on_end(receipt: "RunReceipt") -> None:
            with lock:
                running[:] = [name for name in running if name != receipt.name]
                rows[0] += sum(count for name, count in receipt.counts.items() if name != "unchanged")
                draw(advance=1)

        yield RunWatcher(on_selection, on_begin, on_end)


def show_receipts(receipts: "Sequence[RunReceipt]", options: Options, *, dry_run: bool = False) -> None:
    """Print the receipts of a run: a row for each declaration, errors, schema changes and times."""
    documents = [_receipt_in_fields(receipt.to_dict()) for receipt in receipts]
    if options.output_format == "json":
        options.show(documents)
        return
    columns = ["name", "status", "counts", "files", "seconds", "way", "archives", "error"]
    rows = [_receipt_row(receipt) for receipt in receipts]
    if options.for_people:
        columns = drop_idle_columns(columns, rows, ("files", "way", "archives", "error"))
    options.show(rows, columns)
    if options.for_people:
        for receipt, document in zip(receipts, documents, strict=True):
            _print_remarks(receipt, document, dry_run=dry_run)
        _print_run_summary(receipts)
        if dry_run:
            console.print(NOTHING_WRITTEN)


def _print_remarks(receipt: "RunReceipt", document: dict[str, Any], *, dry_run: bool) -> None:
    """Print why a declaration failed or did not begin, and print its schema changes."""
    from backstory.projects.deliveries import NEW_TABLE

    if receipt.error is not None:
        print_error(document["error"], f"{receipt.name}: ")
    elif receipt.blocked_by is not None and dry_run:
        print_line(f"{receipt.name}: not compared, because it waits for {receipt.blocked_by}.")
    elif receipt.blocked_by is not None:
        print_line(f"{receipt.name}: not begun, because {receipt.blocked_by} did not succeed.")
    for archive in receipt.archives:
        print_line(f"{receipt.name}: the former history is {archive}, read-only")
    for change in document["schema_changes"]:
        if not change.startswith(NEW_TABLE):
            print_line(f"{receipt.name}: {change}")


def _receipt_in_fields(receipt: dict[str, Any]) -> dict[str, Any]:
    """The receipt, with the options in its messages written as fields of the project file."""
    from backstory.projects.entries import FIELDS

    parts = [error_in_fields(part, FIELDS) for part in receipt["parts"]]
    changes = [in_flags(in_fields(change, FIELDS)) for change in receipt["schema_changes"]]
    return error_in_fields({**receipt, "parts": parts, "schema_changes": changes}, FIELDS)


def _receipt_row(receipt: "RunReceipt") -> dict[str, Any]:
    return {
        "name": receipt.name,
        "status": receipt.status,
        "counts": dict(receipt.counts),
        "files": len(receipt.files),
        "seconds": round(receipt.seconds, 1),
        "way": receipt.way,
        "archives": ", ".join(receipt.archives),
        "error": receipt.error and receipt.error.code,
    }


def _print_run_summary(receipts: "Sequence[RunReceipt]") -> None:
    """Print the number of declarations by status, and the seconds by stage."""
    status = Counter(receipt.status for receipt in receipts)
    console.print(", ".join(f"{count} {name}" for name, count in status.items()) or "Nothing was selected.")
    stages: Counter[str] = Counter()
    for receipt in receipts:
        stages.update(receipt.stages)
    if stages:
        words = {"read": "reading", "plan": "comparing", "commit": "committing"}
        times = (f"{words.get(name, name)} {seconds:.1f} s" for name, seconds in stages.items())
        console.print(f"Time, of all tables together: {', '.join(times)}")


def runs(run_id: str | None = None, /, *, limit: Limit = None, options: Options = DEFAULTS) -> None:
    """List past runs, newest first, or the outcome of each declaration in one run.

    For an interrupted run, only the tables that it changed are counted.

    Args:
        run_id: Id of the run whose declarations are listed.
        limit: Largest number of rows to list.
    """
    from backstory.projects.log import former_runs, newest_rows

    def question(catalog: "Catalog", logged: "Rows") -> list[dict[str, Any]]:
        if run_id is not None:
            return [dict(row) for row in newest_rows(logged) if row["run_id"] == run_id]
        return former_runs(catalog, logged)

    rows = _rows_from_log(options, question)[:limit]
    if not rows:
        options.remark("There are no runs." if run_id is None else f"There is no run {run_id}.")
    if run_id is not None:
        rows = [{**row, "counts": json.loads(row["counts"] or "{}")} for row in rows]
    _show_times(rows, RUNS if run_id is None else OF_A_RUN, options)


def fresh(file: Path | None = None, /, *, select: Names = (), options: Options = DEFAULTS) -> int:
    """List the last delivery of each declaration, and the declarations that are late.

    A delivery without changes is a delivery too. A declaration that was never delivered is late. The exit
    code is 4 if any declaration is late.

    Args:
        file: Project file. Default: histories.yaml.
        select: Names, patterns or tags, as for `run`.
    """
    from backstory.projects import declarations, log

    words, now = parse_names(select), datetime.now(UTC)
    project = declarations.read_project(file, words)  # raises its errors before Spark starts
    rows = _rows_from_log(
        options, lambda catalog, logged: log.freshness(project, catalog, logged, now, words)
    )
    if not rows:
        options.remark("Nothing is expected: no declaration has `expect`.")
    _show_times(rows, FRESH, options)
    return Violated.exit_code if any(row["late"] for row in rows) else 0


def init(source: str = ".", /, *, file: Path = Path("histories.yaml"), options: Options = DEFAULTS) -> None:
    """Write a project file from the files of a folder or the tables of a database.

    Keys are written if the source declares them. Fill in the others. If a password is needed, put it in an
    environment variable. Then `backstory run --dry-run` shows the changes that a first run would make. If the
    file exists, entries for new tables are added, and nothing else changes.

    Args:
        source: A folder, or the address of a database: postgresql://user@host/database. mysql:// and
            mariadb:// are read with Spark.
        file: File to write, or to add entries to.
    """
    from backstory.doors.native.databases import declared_keys_by_jdbc
    from backstory.projects.drafting import write_draft

    is_new = not file.exists()
    if is_database(source) and parse_server(source).kind == "jdbc":
        with open_warehouse(options) as warehouse:
            names = write_draft(file, source, partial(declared_keys_by_jdbc, warehouse.store))
    else:
        names = write_draft(file, source, declared_keys)
    options.report({"file": str(file), "new": is_new, "tables": names}, ())
    next_step = f"Next: backstory run {file} --dry-run"
    if is_new:
        options.remark(f"Wrote {file} with {len(names)} table(s). {next_step}")
    elif names:
        options.remark(f"Added {len(names)} table(s) to {file}: {', '.join(names)}. {next_step}")
    else:
        options.remark(f"{file} has all tables of this source, and was not changed.")


def schema(document: Literal["histories"], /, *, options: Options = DEFAULTS) -> None:
    """Print the JSON Schema of a document, for editors.

    Args:
        document: Document to describe: histories, the project file.
    """
    from backstory.projects.entries import json_schema

    _ = document, options
    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")


def _show_times(rows: Sequence[dict[str, Any]], columns: Sequence[str], options: Options) -> None:
    """Print rows. A table shows times to the second."""
    if options.for_people:
        rows = [
            {name: short_time(value) if isinstance(value, datetime) else value for name, value in row.items()}
            for row in rows
        ]
    options.show(rows, columns)


def _rows_from_log(options: Options, question: Any) -> list[dict[str, Any]]:
    """The answer from the catalog and the log of runs. Spark starts only if nothing else can read them."""
    from backstory.projects.log import rows_in_catalog

    memory = Memory(options.settings().driver_memory)
    return answer(options, lambda catalog: list(question(catalog, rows_in_catalog(catalog, memory))))
