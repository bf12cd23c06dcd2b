"""`check` and `repair` test histories by their laws; `adopt` registers a history that another tool writes."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

from backstory.cli.answers import answer_from_files, answer_from_metadata, open_warehouse
from backstory.cli.options import (
    BRANCH_DEFAULTS,
    DEFAULTS,
    BranchOptions,
    Flag,
    NamedTable,
    Options,
    with_flags,
)
from backstory.cli.output import add_error_column, console, print_error, print_line, show, show_document
from backstory.engine.run_context import Remark, RemarkOptions
from backstory.errors import BackstoryError, Violated
from backstory.model.receipt import attempt_each, exit_code
from backstory.stores.refusals import require_some

if TYPE_CHECKING:
    from backstory.model.table import TableName
    from backstory.upkeep.repairing import Repair

    Records = dict[Any, list[dict[str, Any]] | BackstoryError | None]

RECORD = ("table", "law", "violations", "keys", "status")


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
    from backstory.upkeep.checking import STRANGE, records

    require_some(tables, every=all)
    results = _check_tables(() if all else tables, options)
    failures = {table: result for table, result in results.items() if isinstance(result, BackstoryError)}
    unknown = [table for table, error in failures.items() if error.code == STRANGE]
    laws = [record for name in (() if all else tables) or results for record in records(name, results[name])]
    if options.output_format == "table":
        _print_laws(laws)
    else:
        show(laws, options.output_format, add_error_column(RECORD, laws), wide=options.wide)
    for table in () if options.quiet else unknown:
        print_line(f"{table}: unknown layout; not checked.")
    broken = Violated.exit_code if any(law["violations"] for law in laws) else 0
    return exit_code(error for table, error in failures.items() if table not in unknown) or broken


def _check_tables(names: Sequence[str], options: Options) -> "Records":
    """The records of the named tables, or of all tables. Small tables are read from files, others by Spark.

    A table that cannot be read has its error instead. The error of a single named table is raised.
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
    for record in records:
        if record["status"] == "noted":
            console.print(f"{record['table']}: {'; '.join(record['keys'])}", markup=False)
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
    if options.output_format == "json":
        show_document(fix.to_dict())
    elif options.output_format == "csv":
        rows = [{**sample, "laws": ", ".join(sample["laws"])} for sample in fix.samples]
        show(rows, "csv", ("key", "laws", "before", "after"))
    else:
        _print_repair(fix)
    return Violated.exit_code if fix.left else 0


def _print_repair(fix: "Repair") -> None:
    """Print some records before and after the fix, the number of rows, and the laws that are still broken."""
    for sample in fix.samples:
        console.print(f"{sample['key']}: {', '.join(sample['laws'])}", markup=False)
        for sign, row in _row_differences(sample["before"], sample["after"]):
            cells = "  ".join(f"{name} {'–' if value is None else value}" for name, value in row.items())
            console.print(f"  {sign} {cells}", markup=False)
    if fix.keys > len(fix.samples):
        console.print(f"... and {fix.keys - len(fix.samples)} more records")
    rows = ", ".join(f"{count} {outcome}" for outcome, count in fix.counts.items())
    if not any(fix.counts.values()):
        console.print(f"{fix.table}: nothing to repair.", markup=False)
    elif fix.applied:
        console.print(f"{fix.table}: repaired; rows: {rows}.", markup=False)
    else:
        console.print(f"{fix.table}: {rows}; nothing was written. Use --apply to go ahead.", markup=False)
    for law, keys in fix.left.items():
        console.print(f"{law} is still broken: {', '.join(keys)}", markup=False)


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
    names = [name.strip() for name in key.split(",") if name.strip()]
    with open_warehouse(options, brief=not into) as warehouse:
        adopted = warehouse.adopt(table, layout=layout, key=names, into=into, dry_run=dry_run, **remark)
    if options.output_format == "json":
        show_document(adopted.to_dict())
    elif options.output_format == "csv":
        show([adopted.to_dict()], "csv")
    elif not adopted.changed:
        console.print(f"{adopted.table} is already adopted.", markup=False)
    elif into:
        imported = adopted.to_dict()
        verb = "would be imported" if dry_run else "is imported"
        counts = ", ".join(f"{count} {outcome}" for outcome, count in imported["counts"].items())
        text = (
            f"{adopted.table} {verb} into {imported['into']} with key {', '.join(imported['key'])}: {counts}"
        )
        console.print(text, markup=False)
    else:
        verb = "would be read" if dry_run else "is read"
        key_columns = ", ".join(adopted.key)
        text = f"{adopted.table} {verb} as a history of {adopted.layout} with key {key_columns}"
        console.print(text, markup=False)
