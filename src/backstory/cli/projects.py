"""`backstory run`, `runs`, `fresh` and `schema`: everything that a project file declares."""

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from backstory.cli.answers import answer_from_metadata, open_warehouse
from backstory.cli.options import NO_REMARK, Flag, Limit, Names, Options, RemarkFlags, parse_names
from backstory.cli.output import (
    NOTHING_WRITTEN,
    console,
    drop_idle_columns,
    error_in_fields,
    in_fields,
    in_flags,
    print_error,
    print_line,
    short_time,
    show,
)
from backstory.cli.progress import watch_run
from backstory.doors.native.options import OnSchemaChange
from backstory.errors import UsageError, Violated
from backstory.model.receipt import exit_code

if TYPE_CHECKING:
    from backstory.projects.log import Rows, RunReceipt
    from backstory.stores.metadata.table_metadata import Catalog

DEFAULTS = Options()
NEW_TABLE: Final = "new table: "  # of a table's first delivery: its columns are no change
Jobs = Annotated[int, Parameter(validator=Number(gte=1))]
RUNS: Final = (
    "run_id",
    "started_at",
    "seconds",
    "changed",
    "unchanged",
    "refused",
    "failed",
    "not_begun",
    "ended",
)
DECLARATIONS_OF_RUN: Final = (
    "name",
    "kind",
    "status",
    "started_at",
    "seconds",
    "attempts",
    "counts",
    "error_code",
)
FRESH: Final = ("name", "last_delivery", "age_hours", "expected_every_hours", "due", "late")


def run(
    file: Path | None = None,
    /,
    *,
    select: Names = (),
    failed: Flag = False,
    jobs: Jobs = 4,
    dry_run: Flag = False,
    on_schema_change: OnSchemaChange | None = None,
    remark: RemarkFlags = NO_REMARK,
    options: Options = DEFAULTS,
) -> int:
    """Deliver everything that a project file declares: tables, feeds, models and datasets, side by side.

    Each table has its own commit; what waits for another one (a source table:schema.table, a model's input,
    `after`) begins once that has ended well. What fails does not stop the others. What failed for now is
    tried again; the rest is in the report, with its remedy. After SIGTERM, or Ctrl-C, deliveries under way
    finish, and no other one starts.

    Example: `backstory run --select tag:nightly`

    Args:
        file: The project file. Default: histories.yaml.
        select: Names, patterns in quotes such as 'crm.*', or tag:nightly; +NAME also what it waits for,
            NAME+ also what waits for it.
        failed: Only what failed, was refused or did not start when the project last ran it.
        jobs: How many tables are delivered at once.
        dry_run: Print what would change; write nothing. Of several new files the first is compared.
        on_schema_change: Accept, or refuse, that columns are missing, whatever the file says of its tables.
        remark: The note and the author of the commit.
        options: Common options.
    """
    from backstory.engine.run_context import Remark
    from backstory.projects.declarations import read_project, upstream_of
    from backstory.projects.declarations import select as select_from
    from backstory.projects.deliveries import RunTerms
    from backstory.projects.running import RunRequest, run_project

    project, words = read_project(file), parse_names(select)
    select_from(project, upstream_of(project), words)  # what is wrong is said at once, without Spark
    by_whom = Remark(remark.note, remark.author)
    terms = RunTerms(project.folder, dry_run, options.settings().rights, by_whom, on_schema_change)
    with open_warehouse(options) as warehouse, _stop_on_signals() as stop, watch_run(options) as watcher:
        asked = RunRequest(words, failed, jobs, dry_run, stop, watcher)
        receipts = run_project(warehouse.store, project, asked, terms)
    show_receipts(receipts, options, dry_run=dry_run)
    if failed and not receipts and not options.quiet:
        print_line("Nothing failed in the last run.")
    return exit_code(receipts)


@contextmanager
def _stop_on_signals() -> Iterator[Event]:
    """An event that SIGTERM sets, and the first Ctrl-C; a second one breaks off what runs."""
    stop, before = Event(), dict[int, Any]()

    def end(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, before[number])

    for each in (signal.SIGTERM, signal.SIGINT):
        before[each] = signal.signal(each, end)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def show_receipts(receipts: "Sequence[RunReceipt]", options: Options, *, dry_run: bool = False) -> None:
    """Print what a run did: a row for each declaration, what went wrong, and where the time went."""
    told = [_receipt_in_fields(each.to_dict()) for each in receipts]
    if options.answer == "json":
        show(told, "json")
        return
    columns = ["name", "status", "counts", "files", "seconds", "way", "error"]
    rows = [_receipt_row(each) for each in receipts]
    if options.answer == "table":
        columns = drop_idle_columns(columns, rows, ("files", "way", "error"))
    show(rows, options.answer, columns, wide=options.wide)
    if options.answer == "table":
        for each, document in zip(receipts, told, strict=True):
            if each.error is not None:
                print_error(document["error"], f"{each.name}: ")
            elif each.blocked_by is not None:
                print_line(f"{each.name}: not begun, because {each.blocked_by} did not end well.")
            for change in document["schema_changes"]:
                if not change.startswith(NEW_TABLE):
                    print_line(f"{each.name}: {change}")
        _print_run_summary(receipts)
        if dry_run:
            console.print(NOTHING_WRITTEN)


def _receipt_in_fields(receipt: dict[str, Any]) -> dict[str, Any]:
    """The receipt, whose errors name options as the project file has them."""
    from backstory.projects.entries import FIELDS

    parts = [error_in_fields(each, FIELDS) for each in receipt["parts"]]
    changes = [in_flags(in_fields(each, FIELDS)) for each in receipt["schema_changes"]]
    return error_in_fields({**receipt, "parts": parts, "schema_changes": changes}, FIELDS)


def _receipt_row(receipt: "RunReceipt") -> dict[str, Any]:
    return {
        "name": receipt.name,
        "status": receipt.status,
        "counts": dict(receipt.counts),
        "files": len(receipt.files),
        "seconds": round(receipt.seconds, 1),
        "way": receipt.way,
        "error": receipt.error and receipt.error.code,
    }


def _print_run_summary(receipts: "Sequence[RunReceipt]") -> None:
    """How many ended how, and where the time went."""
    status = Counter(each.status for each in receipts)
    console.print(", ".join(f"{count} {name}" for name, count in status.items()) or "Nothing was selected.")
    stages: Counter[str] = Counter()
    for each in receipts:
        stages.update(each.stages)
    if stages:
        words = {"read": "reading", "plan": "comparing", "commit": "committing"}
        times = (f"{words.get(name, name)} {seconds:.1f} s" for name, seconds in stages.items())
        console.print(f"Time, of all tables together: {', '.join(times)}")


def runs(run_id: str | None = None, /, *, limit: Limit = None, options: Options = DEFAULTS) -> None:
    """List former runs, newest first; or what became of each declaration in one of them.

    Of an interrupted run only the tables that it changed are counted.

    Args:
        run_id: A run, by its id.
        limit: The largest number of rows.
        options: Common options.
    """
    from backstory.projects.log import former_runs, newest_rows

    def question(catalog: "Catalog", logged: "Rows") -> list[dict[str, Any]]:
        if run_id is not None:
            return [dict(row) for row in newest_rows(logged) if row["run_id"] == run_id]
        return former_runs(catalog, logged)

    rows = _rows_from_log(options, question)[:limit]
    if not rows and not options.quiet:
        print_line("There are no runs." if run_id is None else f"There is no run {run_id}.")
    if run_id is not None:
        rows = [{**row, "counts": json.loads(row["counts"] or "{}")} for row in rows]
    _show_times(rows, RUNS if run_id is None else DECLARATIONS_OF_RUN, options)


def fresh(file: Path | None = None, /, *, select: Names = (), options: Options = DEFAULTS) -> int:
    """List when each declaration was last delivered, and which are late; exit code 4 if one is.

    A delivery that changed nothing counts, too. What was never delivered is late.

    Args:
        file: The project file. Default: histories.yaml.
        select: As for `run`.
        options: Common options.
    """
    from backstory.projects.declarations import read_project, upstream_of
    from backstory.projects.declarations import select as select_from
    from backstory.projects.log import freshness

    project = read_project(file)
    names = [each.name for each in select_from(project, upstream_of(project), parse_names(select))]
    now = datetime.now(UTC)
    rows = _rows_from_log(options, lambda catalog, logged: freshness(project, catalog, logged, now, names))
    if not rows and not options.quiet:
        print_line("Nothing is expected: no declaration has `expect`.")
    _show_times(rows, FRESH, options)
    return Violated.exit_code if any(row["late"] for row in rows) else 0


def init(source: str = ".", /, *, file: Path = Path("histories.yaml"), options: Options = DEFAULTS) -> None:
    """Write a first project file from what a folder or a database has.

    Keys are written where the source declares them; fill in the others. A password goes into an environment
    variable. Then `backstory run --dry-run` says what would be done.

    Args:
        source: A folder, or the address of a database: postgresql://user@host/database. mysql:// and
            mariadb:// are read with Spark.
        file: The file to write; one that is there is not overwritten.
        options: Common options.
    """
    from backstory.doors.native.databases import declared_keys_by_jdbc
    from backstory.projects.drafting import draft_project
    from backstory.sources.databases.address import is_database, parse_server

    if file.exists():
        raise UsageError("file-exists", f"{file} is there already.", "Name another one with `file=NAME`.")
    if is_database(source) and parse_server(source).kind == "jdbc":
        with open_warehouse(options) as warehouse:
            text = draft_project(source, partial(declared_keys_by_jdbc, warehouse.store))
    else:
        text = draft_project(source)
    file.write_text(text, encoding="utf-8")
    if not options.quiet:
        tables = text.count("    key:")
        print_line(f"Wrote {file} with {tables} table(s). Next: backstory run {file} --dry-run")


def schema(document: Literal["histories"], /, *, options: Options = DEFAULTS) -> None:
    """Print the JSON Schema of a document, for editors.

    Args:
        document: Which one: histories, the project file.
        options: Common options.
    """
    from backstory.projects.entries import json_schema

    _ = document, options
    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")


def _show_times(rows: Sequence[dict[str, Any]], columns: Sequence[str], options: Options) -> None:
    """Print rows; for people times to the second."""
    if options.answer == "table":
        rows = [
            {name: short_time(value) if isinstance(value, datetime) else value for name, value in row.items()}
            for row in rows
        ]
    show(rows, options.answer, () if options.answer == "json" and rows else columns, wide=options.wide)


def _rows_from_log(options: Options, question: Any) -> list[dict[str, Any]]:
    """What the catalog and the log of runs answer; Spark is started only where nothing else reads them."""
    from backstory.projects.log import rows_of_log, rows_without_spark
    from backstory.stores.metadata.catalogs import SessionCatalog

    memory = options.settings().driver_memory
    answer = answer_from_metadata(
        options, lambda catalog: (question(catalog, rows_without_spark(catalog, memory)),)
    )
    if answer is not None:
        return list(answer[0])
    with open_warehouse(options, brief=True) as started:
        return list(question(SessionCatalog(started.store), rows_of_log(started.store)))
