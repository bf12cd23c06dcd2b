"""Look after histories: `check`, `repair`, `adopt`."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from backstory.cli.answers import answer_from_files, answer_from_metadata, open_warehouse
from backstory.cli.options import NO_REMARK, Flag, Options, RemarkFlags
from backstory.cli.output import add_error_column, console, print_error, print_line, show, show_document
from backstory.cli.progress import show_activity
from backstory.errors import BackstoryError, Violated
from backstory.model.receipt import attempt_each, exit_code

if TYPE_CHECKING:
    from backstory.model.table import TableName
    from backstory.upkeep.repairing import Repair

    Checked = dict[Any, list[dict[str, Any]] | BackstoryError | None]

DEFAULTS = Options()
RECORD = ("table", "law", "violations", "keys", "status")


def check(*tables: str, all: Flag = False, options: Options = DEFAULTS) -> int:  # noqa: A002 - the option's name
    """Check the laws of tables, and name the keys that break them.

    Each table is read once. If a law is broken, the exit code is 4, and `backstory repair TABLE` shows a fix.
    If one table cannot be checked, the others still are. Its record has status unchecked and the error; the
    exit code is that error's, usually 1.

    Example: `backstory check crm.customer`

    Args:
        tables: Tables, as schema.table.
        all: Every table of the warehouse.
        options: Common options.
    """
    from backstory.stores.refusals import require_some
    from backstory.upkeep.checking import STRANGE, records

    require_some(tables, every=all)

    found = _check_tables(() if all else tables, options)
    failed = {table: each for table, each in found.items() if isinstance(each, BackstoryError)}
    strange = [table for table, error in failed.items() if error.code == STRANGE]
    told = [record for each in (() if all else tables) or found for record in records(each, found[each])]
    if options.answer == "table":
        _print_laws(told)
    else:
        show(told, options.answer, add_error_column(RECORD, told), wide=options.wide)
    for table in () if options.quiet else strange:
        print_line(f"{table}: unknown layout; not checked.")
    broken = Violated.exit_code if any(each["violations"] for each in told) else 0
    return exit_code(error for table, error in failed.items() if table not in strange) or broken


def _check_tables(names: Sequence[str], options: Options) -> "Checked":
    """The records of tables, or of all: of small ones out of their files, of the others by Spark.

    What keeps one from being read stands in place of its records; of a single one that is named it is raised.
    """
    from backstory.stores.iceberg.store import tables
    from backstory.upkeep.checking import check, check_small

    asked = partial(attempt_each, every=not names, alone=len(names) == 1)
    every: Sequence[Any] | None = names or answer_from_metadata(options, lambda catalog: catalog.tables())
    found: Checked = asked(every or (), lambda each: answer_from_files(options, each, check_small))
    left = [each for each, records in found.items() if records is None]
    if every is None or left:
        with open_warehouse(options, *names) as warehouse, show_activity(options, "Checking ..."):
            store = warehouse.store

            def by_spark(each: "str | TableName") -> list[dict[str, Any]]:
                return check(store, warehouse.table(each).name if isinstance(each, str) else each)

            found |= asked(tables(store) if every is None else left, by_spark)
    return found if names else dict(sorted(found.items()))


def repair(
    table: str, *, apply: Flag = False, remark: RemarkFlags = NO_REMARK, options: Options = DEFAULTS
) -> int:
    """Fix a history whose laws are broken.

    Without --apply it shows the fix, record by record; with --apply it makes it in one commit. Healthy
    records are not touched. The exit code is 4 if a law remains broken because the right fix is unknown.

    Example: `backstory repair crm.customer --apply`

    Args:
        table: The table, as schema.table.
        apply: Go ahead.
        remark: The note and the author of the commit.
        options: Common options.
    """
    from backstory.upkeep.repairing import repair_small

    found = None if apply else answer_from_files(options, table, repair_small)
    if found is None:
        with open_warehouse(options, table) as warehouse, show_activity(options, "Checking ..."):
            found = warehouse.table(table).repair(apply=apply, **remark.arguments())
    if options.answer == "json":
        show_document(found.to_dict())
    elif options.answer == "csv":
        show([_sample_row(each) for each in found.samples], "csv", ("key", "laws", "before", "after"))
    else:
        _print_repair(found)
    return Violated.exit_code if found.left else 0


def adopt(
    table: str,
    *,
    layout: Literal["dbt", "sqlmesh", "dlt", "autocdc"],
    key: str = "",
    dry_run: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Use a history that another tool writes: read, check and repair it here.

    Only table properties are set. The other tool keeps writing the table; backstory never loads into it.
    A version is true from its start until just before its end: if the tool stores the last day as the end,
    the version is read one day short. An end in 2200 or later counts as open.

    Example: `backstory adopt shop.customer_snapshot --layout dbt --key customer_id`

    Args:
        table: The table, as schema.table.
        layout: The tool: dbt snapshots, SQLMesh SCD_TYPE_2, dlt scd2, or AUTO CDC with SCD type 2.
        key: Key columns, a,b. Default: the table's identifier fields.
        dry_run: Show what would be done, and change nothing.
        options: Common options.
    """
    names = [name.strip() for name in key.split(",") if name.strip()]
    with open_warehouse(options, brief=True) as warehouse:
        found = warehouse.adopt(table, layout=layout, key=names, dry_run=dry_run)
    if options.answer == "json":
        show_document(found.to_dict())
    elif options.answer == "csv":
        show([found.to_dict()], "csv")
    else:
        done = "would be read" if dry_run else "is read"
        told = f"{found.table} {done} as a history of {found.layout}, by {', '.join(found.key)}"
        console.print(told if found.changed else f"{found.table} is already adopted.", markup=False)


def _sample_row(each: "Mapping[str, Any]") -> dict[str, Any]:
    return {**each, "laws": ", ".join(each["laws"])}


def _print_repair(found: "Repair") -> None:
    """Print some records before and after, and what was done."""
    for each in found.samples:
        console.print(f"{each['key']}: {', '.join(each['laws'])}", markup=False)
        for sign, row in _row_differences(each["before"], each["after"]):
            told = "  ".join(f"{name} {'–' if value is None else value}" for name, value in row.items())
            console.print(f"  {sign} {told}", markup=False)
    if found.keys > len(found.samples):
        console.print(f"... and {found.keys - len(found.samples)} more records")
    rows = ", ".join(f"{count} {outcome}" for outcome, count in found.counts.items())
    if not any(found.counts.values()):
        console.print(f"{found.table}: nothing to repair.", markup=False)
    elif found.applied:
        console.print(f"{found.table}: repaired; rows: {rows}.", markup=False)
    else:
        console.print(f"{found.table}: {rows}; nothing was written. Use --apply to go ahead.", markup=False)
    for law, keys in found.left.items():
        console.print(f"{law} is still broken: {', '.join(keys)}", markup=False)


def _row_differences(before: list[Any], after: list[Any]) -> list[tuple[str, Any]]:
    """Rows that stay, go and come, by their starts."""
    stays = [(" ", row) for row in before if row in after]
    gone = [("-", row) for row in before if row not in after]
    return sorted([*stays, *gone, *(("+", row) for row in after if row not in before)], key=_by_start)


def _by_start(each: tuple[str, Any]) -> tuple[str, str]:
    return str(next(iter(each[1].values()), "")), "-+".find(each[0]).__str__()


def _print_laws(found: list[dict[str, Any]]) -> None:
    """Print what is broken, and a line for each table."""
    broken = [{**each, "keys": ", ".join(each["keys"])} for each in found if each["violations"]]
    for each in (each for each in found if each["status"] == "noted"):
        console.print(f"{each['table']}: {'; '.join(each['keys'])}", markup=False)
    if broken:
        show(broken, "table", RECORD[:-1])
        console.print()
    for each in found:
        if each["law"] is None:
            print_error(each["error"], f"{each['table']}: ")
    for table in dict.fromkeys(each["table"] for each in found if each["law"] is not None):
        laws = [each for each in found if each["table"] == table and each["status"] != "noted"]
        wrong = sum(bool(each["violations"]) for each in laws)
        told = f"{wrong} of {len(laws)} laws are broken" if wrong else f"all {len(laws)} laws hold"
        console.print(f"{table}: {told}", markup=False)
