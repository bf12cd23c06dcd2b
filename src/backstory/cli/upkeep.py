"""Upkeep of tables and warehouses: laws and repairs, rewinds, erasure, maintenance, and foreign histories."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from cyclopts import Parameter

from backstory.cli.answers import answer_from_files, answer_from_metadata, open_warehouse, show_start
from backstory.cli.options import (
    BRANCH_DEFAULTS,
    DEFAULTS,
    BranchOptions,
    Flag,
    NamedTable,
    Options,
    parse_names,
    require_key,
    with_flags,
)
from backstory.cli.output import (
    NOTHING_WRITTEN,
    add_error_column,
    console,
    drop_idle_columns,
    print_error,
    print_lines,
    show,
)
from backstory.engine.run_context import Remark, RemarkOptions
from backstory.errors import BackstoryError, Violated
from backstory.model.instant import optional_instant, parse_instant
from backstory.model.receipt import attempt_each, exit_code
from backstory.model.values import key_of_words, key_text
from backstory.settings import CATALOG
from backstory.stores.port import require_some
from backstory.upkeep.options import MaintainOptions

if TYPE_CHECKING:
    from backstory.model.table import TableName
    from backstory.upkeep.relocating import Relocated
    from backstory.upkeep.repairing import Repair

    Records = dict[Any, list[dict[str, Any]] | BackstoryError | None]

RECORD = ("table", "law", "violations", "keys", "status")
MAINTENANCE_COLUMNS = (
    "table",
    "files",
    "files_after",
    "bytes_rewritten",
    "snapshots_expired",
    "rows_settled",
)
# Words for the rows of a rewind by outcome, with and without --apply.
REWOUND_ROWS = {"taken_back": "taken back", "moved": "moved", "returned": "returned"}
ROWS_TO_REWIND = {"taken_back": "to take back", "moved": "to move", "returned": "to return"}
USE_APPLY = "Nothing was written. Use --apply to go ahead."


def check(*tables: str, all: Flag = False, options: BranchOptions = BRANCH_DEFAULTS) -> int:  # noqa: A002 - the option's name
    """Check the laws of tables, and name the keys that break them.

    Each table is read once. If a law is broken, the exit code is 4, and `backstory repair TABLE` shows a fix.
    If a table cannot be checked, its record has the status unchecked and contains the error, and the other
    tables are still checked. The exit code is then the code of that error, usually 1.

    Example: `backstory check crm.customer`

    Args:
        tables: Tables, as schema.table.
        all: Every table of the warehouse.
    """
    from backstory.upkeep.checking import UNKNOWN_LAYOUT, records

    require_some(tables, every=all)
    results = _check_tables(() if all else tables, options)
    failures = {table: result for table, result in results.items() if isinstance(result, BackstoryError)}
    unknown = [table for table, error in failures.items() if error.code == UNKNOWN_LAYOUT]
    laws = [record for name in (() if all else tables) or results for record in records(name, results[name])]
    if options.for_people:
        _print_laws(laws)
    else:
        options.show(laws, add_error_column(RECORD, laws))
    for table in unknown:
        options.remark(f"{table}: unknown layout; not checked.")
    broken = Violated.exit_code if any(law["violations"] for law in laws) else 0
    return exit_code(error for table, error in failures.items() if table not in unknown) or broken


def _check_tables(names: Sequence[str], options: Options) -> "Records":
    """The records of the named tables, or of all tables.

    Small tables are read from files, and others by Spark. A table that cannot be read has its error instead.
    The error of a single named table is raised.
    """
    from backstory.stores.iceberg.store import tables
    from backstory.upkeep.checking import check, check_small

    check_each = partial(attempt_each, every=not names, alone=len(names) == 1)
    every: Sequence[Any] | None = names or answer_from_metadata(options, lambda catalog: catalog.tables())
    results: Records = check_each(every or (), lambda name: answer_from_files(options, name, check_small))
    left = [name for name, records in results.items() if records is None]
    if every is None or left:
        with open_warehouse(options, *names, activity="Checking ...") as warehouse:
            store = warehouse.store

            def check_by_spark(name: "str | TableName") -> list[dict[str, Any]]:
                return check(store, warehouse.table(name).name if isinstance(name, str) else name)

            results |= check_each(tables(store) if every is None else left, check_by_spark)
    return results if names else dict(sorted(results.items()))


def _print_laws(records: list[dict[str, Any]]) -> None:
    """Print the broken laws, and a line for each table."""
    broken = [{**record, "keys": ", ".join(record["keys"])} for record in records if record["violations"]]
    noted = (record for record in records if record["status"] == "noted")
    print_lines(f"{record['table']}: {'; '.join(record['keys'])}" for record in noted)
    if broken:
        show(broken, "table", RECORD[:-1])
        console.print()
    for record in records:
        if record["law"] is None:
            print_error(record["error"], f"{record['table']}: ")
    for table in dict.fromkeys(record["table"] for record in records if record["law"] is not None):
        laws = [record for record in records if record["table"] == table and record["status"] != "noted"]
        wrong = sum(bool(law["violations"]) for law in laws)
        text = f"{wrong} of {len(laws)} laws are broken" if wrong else f"all {len(laws)} laws hold"
        console.print(f"{table}: {text}", markup=False)


@with_flags(Remark)
def repair(
    table: NamedTable, *, apply: Flag = False, options: Options = DEFAULTS, **remark: Unpack[RemarkOptions]
) -> int:
    """Fix a history whose laws are broken.

    Without --apply, the command shows the fix, record by record. With --apply, it makes the fix in one
    commit. Healthy records are not changed. The exit code is 4 if a law remains broken because the right fix
    is unknown.

    Example: `backstory repair crm.customer --apply`

    Args:
        apply: Write the fix, instead of only showing it.
    """
    from backstory.upkeep.repairing import repair_small

    fix = None if apply else answer_from_files(options, table, repair_small)
    if fix is None:
        with open_warehouse(options, table, activity="Checking ...") as warehouse:
            fix = warehouse.table(table).repair(apply=apply, **remark)
    if options.output_format == "csv":
        rows = [{**sample, "laws": ", ".join(sample["laws"])} for sample in fix.samples]
        options.show(rows, ("key", "laws", "before", "after"))
    else:
        options.report(fix.to_dict(), _repair_lines(fix))
    return Violated.exit_code if fix.left else 0


def _repair_lines(fix: "Repair") -> Iterator[str]:
    """Some records before and after the fix, the number of rows, and the laws that are still broken."""
    for sample in fix.samples:
        yield f"{sample['key']}: {', '.join(sample['laws'])}"
        for sign, row in _row_differences(sample["before"], sample["after"]):
            cells = (f"{name} {'–' if value is None else value}" for name, value in row.items())
            yield f"  {sign} {'  '.join(cells)}"
    if fix.keys > len(fix.samples):
        yield f"... and {fix.keys - len(fix.samples)} more records"
    rows = ", ".join(f"{count} {outcome}" for outcome, count in fix.counts.items())
    if not any(fix.counts.values()):
        yield f"{fix.table}: nothing to repair."
    elif fix.applied:
        yield f"{fix.table}: repaired; rows: {rows}."
    else:
        yield f"{fix.table}: {rows}; nothing was written. Use --apply to go ahead."
    yield from (f"{law} is still broken: {', '.join(keys)}" for law, keys in fix.left.items())


def _row_differences(before: list[Any], after: list[Any]) -> list[tuple[str, Any]]:
    """Unchanged, removed and added rows with their signs (blank, -, +), sorted by their starts."""
    same = [(" ", row) for row in before if row in after]
    removed = [("-", row) for row in before if row not in after]
    added = [("+", row) for row in after if row not in before]

    def by_start(signed_row: tuple[str, Any]) -> tuple[str, int]:
        sign, row = signed_row
        return str(next(iter(row.values()), "")), "-+".find(sign)

    return sorted([*same, *removed, *added], key=by_start)


@with_flags(Remark)
def adopt(
    table: NamedTable,
    *,
    layout: Literal["dbt", "sqlmesh", "dlt", "autocdc", "autocdc-bitemporal"],
    key: str = "",
    into: str = "",
    dry_run: Flag = False,
    options: Options = DEFAULTS,
    **remark: Unpack[RemarkOptions],
) -> None:
    """Adopt a history that another tool writes, to read, check and repair it here.

    Only table properties are set. The other tool still writes the table, and backstory never loads into it.
    A version is true from its start until just before its end. If the tool stores the last day as the end,
    the version is read one day short. An end in 2200 or later counts as open.

    A history of layout autocdc-bitemporal is imported into a new table, with both of its times.

    Example: `backstory adopt shop.customer_snapshot --layout dbt --key customer_id`

    Args:
        layout: The tool: dbt snapshots, SQLMesh SCD_TYPE_2, dlt scd2, or AUTO CDC (SCD type 2 or bitemporal).
        key: Key columns, a,b. Default: the table's identifier fields.
        into: The new table, as schema.table, if the history is imported.
        dry_run: Show the changes, and write nothing.
    """
    names = parse_names((key,))
    with open_warehouse(options, brief=not into) as warehouse:
        adopted = warehouse.adopt(table, layout=layout, key=names, into=into, dry_run=dry_run, **remark)
    outcome, key_columns, verb = adopted.to_dict(), ", ".join(adopted.key), "would be" if dry_run else "is"
    if not adopted.changed:
        text = f"{adopted.table} is already adopted."
    elif into:
        counts = ", ".join(f"{count} {name}" for name, count in outcome["counts"].items())
        text = f"{adopted.table} {verb} imported into {outcome['into']} with key {key_columns}: {counts}"
    else:
        text = f"{adopted.table} {verb} read as a history of {adopted.layout} with key {key_columns}"
    options.report(outcome, [text])


@with_flags(Remark)
def rewind(
    table: str,
    time: str,
    *,
    apply: Flag = False,
    options: Options = DEFAULTS,
    **remark: Unpack[RemarkOptions],
) -> None:
    """Undo everything that a table received after a given time.

    Without --apply, the command only shows the changes. The time is the time at which the table received the
    data, not the time at which the data was true. It is recorded time in a native table, system time in a
    dataset, and commit time in any other table. A native table keeps its earlier state for as-of --known-at,
    and another rewind can undo a rewind. A history is rewound together with its base table.

    Example: `backstory rewind crm.customer 2026-03-01 --apply`

    Args:
        table: The table, as schema.table, or a dataset's name.
        time: A time in ISO 8601. Without an offset it is UTC, and a date is its first instant.
        apply: Write the changes, instead of only showing them.
    """
    instant = parse_instant(time)
    with open_warehouse(options, table, activity="Reading the table's commits ...") as warehouse:
        rewound = warehouse.table(table).rewind(instant, apply=apply, **remark).to_dict()
    parts = (rewound, *rewound["also"])
    options.report(rewound, [*chain.from_iterable(map(_rewound_lines, parts)), *_next_step(apply)])


def _next_step(apply: bool) -> Sequence[str]:  # noqa: FBT001 - the flag of the command
    """The line that follows a plan."""
    return () if apply else (USE_APPLY,)


def _rewound_lines(rewound: Mapping[str, Any]) -> Iterator[str]:
    """The outcome of a rewind for one table: commits, rows and keys."""
    words = REWOUND_ROWS if rewound["applied"] else ROWS_TO_REWIND
    rows = ", ".join(f"{words[name]} {count}" for name, count in rewound["counts"].items() if count)
    count = len(rewound["commits"])
    verb = "undid" if rewound["applied"] else "would undo"
    text = f"{verb} {count} commit{'' if count == 1 else 's'}; rows: {rows}" if rows else "nothing to undo"
    yield f"{rewound['table']}: {text}"
    if rewound["keys"]:
        keys = (key_text(list(key), list(key.values())) for key in rewound["keys"])
        yield f"  keys: {', '.join(keys)}"


@with_flags(Remark)
def forget(
    table: NamedTable,
    *key: str,
    drop_cursors: Flag = False,
    apply: Flag = False,
    options: Options = DEFAULTS,
    **remark: Unpack[RemarkOptions],
) -> None:
    """Erase a record from all versions, snapshots and files of a table, and print a certificate.

    Without --apply, the command only searches for the record. The record is erased from data files, manifests
    (whose bounds are clear text), statistics and old metadata. Every snapshot except the newest expires. The
    record is also erased from the base and the archive of a history. A record cannot be erased from an event
    log. If the source still has the record, the next delivery writes it again, so delete it there first. Let
    no other program write to the table in the meantime.

    Only files that are proven to be the table's own are deleted. The certificate names all other files with
    the record. Consumers of changes are not notified.

    Example: `backstory forget crm.customer 42 --apply`

    Args:
        key: The key's value, or name=value for each column of a composite key.
        drop_cursors: Drop the cursors of consumers that have not read everything.
        apply: Erase the record, instead of only searching for it.
    """
    from backstory.stores.iceberg.store import existing

    require_key(key)
    with open_warehouse(options, table, activity="Searching the table's files ...") as warehouse:
        stored = warehouse.table(table)
        record = key_of_words(existing(stored.store, stored.name).shape.source_key, key)
        certificate = stored.forget(record, drop_cursors=drop_cursors, apply=apply, **remark).to_dict()
    options.report(certificate, _certificate_lines(certificate, applied=apply))


def _certificate_lines(certificate: Mapping[str, Any], *, applied: bool) -> Iterator[str]:
    """The outcome of an erasure in a table and in the tables that belong to it."""
    parts = (certificate, *certificate["also"])
    if all(part["status"] == "no-record" for part in parts):
        files = sum(part["searched"].get("files", 0) for part in parts)
        yield f"{certificate['table']}: no such record; searched: {files} files"
        return
    yield from chain.from_iterable(map(_erasure_lines, parts))
    yield f"sha256 {certificate['sha256']}" if applied else USE_APPLY


def _erasure_lines(certificate: Mapping[str, Any]) -> Iterator[str]:
    """The erased rows, and the deleted and remaining files, of one table."""
    rows = ", ".join(f"{role} {count}" for role, count in certificate["rows"].items()) or "no rows"
    word = "forgotten" if certificate["applied"] else "not forgotten"
    rewritten = certificate["files_rewritten"]
    yield f"{certificate['table']}: {word}: {rows}; files {rewritten}"
    counts = {name: len(certificate[f"{name}_deleted"]) for name in ("files", "metadata", "statistics")}
    deleted = ", ".join(f"{count} {name}" for name, count in counts.items())
    searched, left = certificate["searched"].get("files", 0), certificate["left"] or ()
    yield f"  deleted: {deleted}; searched: {searched} files; left: {len(left) or 'nothing'}"
    yield from (f"    {file}" for file in left)
    if certificate["consumers"]:
        yield f"  consumers that keep copies: {', '.join(certificate['consumers'])}"


@with_flags(MaintainOptions, Remark)
def maintain(
    *tables: str,
    all: Flag = False,  # noqa: A002 - the option's name
    options: Options = DEFAULTS,
    **words: Unpack[MaintainOptions],
) -> int:
    """Compact small files and expire old snapshots. Queries return the same results as before.

    Rows keep their ids, and deleted rows are removed from the files. Snapshots are kept for 30 days, or for
    the table's history.expire.max-snapshot-age-ms. They are kept longer if a cursor, a tag, a branch or a run
    without a log entry needs them. Cursors are kept for backstory.cursor-max-age (30 days). Unneeded files
    outside of the table's folder are listed, but never deleted.

    Example: `backstory maintain --all --dry-run`

    Args:
        tables: Tables, as schema.table.
        all: Every table of the warehouse.
    """
    require_some(tables, every=all)
    for time in ("settle_before", "known_from"):
        words[time] = optional_instant(words[time])
    with open_warehouse(options, *tables, activity="Maintaining tables ...") as warehouse:
        receipts = warehouse.maintain(*tables, all=all, **words)
    documents = [receipt.to_dict() for receipt in receipts]
    if not options.for_people:
        options.show(documents, () if documents else MAINTENANCE_COLUMNS)
    else:
        _print_maintained(documents)
        if words["dry_run"]:
            console.print(NOTHING_WRITTEN)
    return exit_code(receipts)


def _print_maintained(documents: Sequence[Mapping[str, Any]]) -> None:
    """Print a row for each table, then its error, the files that were not deleted, and a proposal."""
    columns = drop_idle_columns(MAINTENANCE_COLUMNS, documents, ("rows_settled",))
    show([{name: document[name] for name in columns} for document in documents], "table", columns)
    for document in documents:
        table = document["table"]
        if document["error"]:
            print_error(document["error"], f"{table}: ")
        if document["left"]:
            count = len(document["left"])
            text = "files outside the table's folder are not needed any more and were not deleted"
            print_lines([f"{table}: {count} {text}:", *(f"  {file}" for file in document["left"])])
        if document["propose_settle_before"]:
            share, time = document["memory_share"], document["propose_settle_before"]
            console.print(f"{table}: {share:.0%} is memory; consider --settle-before {time}")


def drop(
    table: NamedTable, *, archive: str | None = None, apply: Flag = False, options: Options = DEFAULTS
) -> None:
    """End a history: delete the table with its files, or keep it read-only under another name.

    Without --apply, the command only shows the outcome. Every reading command works on an archived history,
    and every delivery to it is refused. `forget` and `maintain` still work. A later delivery to the old name
    begins a new table.

    Example: `backstory drop crm.customer --archive customer_until_2026 --apply`

    Args:
        archive: Keep the history under this name, schema.table or a name in the same schema.
        apply: Delete or rename the table, instead of only showing it.
    """
    with open_warehouse(options, table, activity="Reading the table ...") as warehouse:
        ended = warehouse.table(table).drop(archive=archive, apply=apply).to_dict()
    word = f"archived as {ended['archive']}" if ended["archive"] else "dropped"
    outcome = word if apply else f"would be {word}"
    text = f"{ended['table']}: {outcome}; {ended['rows']} rows, {ended['snapshots']} snapshots"
    cursors = [f"  cursors: {', '.join(ended['cursors'])}"] if ended["cursors"] else []
    options.report(ended, [text, *cursors, *_next_step(apply)])


def publish(table: NamedTable, branch: str, *, discard: Flag = False, options: Options = DEFAULTS) -> None:
    """Publish a branch to its table in one step, with everything that was delivered with --branch.

    Each delivery keeps its own commit. The branch is refused if the table has changed since the branch
    began. It is removed after it is published. `backstory diff TABLE main..BRANCH` shows the differences
    first.

    Example: `backstory publish crm.customer preview`

    Args:
        branch: The branch.
        discard: Remove the branch and its deliveries instead.
    """
    with open_warehouse(options, table) as warehouse:
        published = warehouse.publish(table, branch, discard=discard)
    word = "discarded" if published.discarded else "published"
    commits = "1 commit" if published.commits == 1 else f"{published.commits} commits"
    options.report(published.to_dict(), [f"{published.table}: {word} {published.branch}, {commits}"])


def relocate(
    *,
    from_: Annotated[Path | None, Parameter(name="--from")] = None,
    dry_run: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Relocate a warehouse whose folder was copied or moved. Until then, its tables are refused.

    Iceberg stores absolute paths, so the tables of a copy still name the files of the original. Their
    metadata is rewritten for this folder: every snapshot, branch, tag and cursor, and the files that hide
    rows. Data files are unchanged. All tables are relocated, or none. If the command is killed, run it again.
    Files outside of the folder are not changed, and the tables with such files are listed. Neither Java nor
    Spark is started.

    Example: `backstory relocate --warehouse /backup/warehouse`

    Args:
        from_: The former folder. Default: the folder recorded in the catalog.
        dry_run: Check that every file exists, print the changes, and write nothing.
    """
    from backstory.upkeep.relocating import relocate as relocate_warehouse

    with show_start(options):
        relocated = relocate_warehouse(options.warehouse, from_=from_, config=options.config, dry_run=dry_run)
    options.report(relocated.to_dict(), _relocated_lines(relocated, dry_run=dry_run))


def _relocated_lines(relocated: "Relocated", *, dry_run: bool) -> Iterator[str]:
    if not relocated.former:
        yield f"{relocated.warehouse} has not moved: nothing to do."
        return
    word, verb = ("would be relocated", "to be written") if dry_run else ("relocated", "written")
    tables, views = len(relocated.tables), len(relocated.views)
    yield f"{relocated.warehouse}: {word} from {', '.join(relocated.former)}"
    yield f"  {tables} tables, {views} views, {relocated.files} files of metadata {verb}"
    yield from (f"  {warning}" for warning in relocated.warnings)
    if dry_run:
        yield NOTHING_WRITTEN


def doctor(*, catalog: str = CATALOG, options: Options = DEFAULTS) -> int:
    """Try the abilities of a session and a catalog on a scratch table, which is then dropped.

    The output lists the versions of all components, and shows whether each feature works. Include the output
    when you report a problem. The exit code is 1 if an ability fails.

    Example: `backstory doctor --output json`

    Args:
        catalog: Catalog of the configuration to examine.
    """
    with open_warehouse(options, catalog=catalog, activity="Trying each ability ...") as warehouse:
        diagnosis = warehouse.doctor()
    document = diagnosis.to_dict()
    if options.output_format == "csv":
        options.show(document["abilities"])
    elif not options.for_people:
        options.show_one(document)
    else:
        options.show_one(document["versions"])
        rows = [
            {**ability, "error": ability["error"] and ability["error"]["message"]}
            for ability in document["abilities"]
        ]
        options.show(rows, drop_idle_columns(list(rows[0]), rows, ("error",)))
    return diagnosis.exit_code
