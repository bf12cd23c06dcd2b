"""Look after histories: `check`, `repair`, `adopt`."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from backstory.cli.asking import answer_from_files, answer_from_metadata, opened
from backstory.cli.options import Flag, Options
from backstory.cli.output import console, errors, show, show_document
from backstory.cli.starting import busy
from backstory.errors import UsageError, Violated

if TYPE_CHECKING:
    from backstory.upkeep.repairing import Repair

DEFAULTS = Options()
RECORD = ("table", "law", "violations", "keys")


def check(*tables: str, all: Flag = False, options: Options = DEFAULTS) -> int:  # noqa: A002 - the option's name
    """Check the laws of tables, and name the keys that break them.

    Each table is read once. Exit code 4 if a law is broken: `backstory repair TABLE` shows what mends it.

    Example: `backstory check crm.customer`

    Args:
        tables: Tables, as schema.table.
        all: Every table of the warehouse.
        options: Common options.
    """
    if not tables and not all:
        raise UsageError("no-table", "No table is named.", "Name tables, or write --all.")
    found = _checked(tables, options) if tables and not all else _all_checked(options)
    if options.answer == "table":
        _tell(found)
    else:
        show(found, options.answer, RECORD)
    return Violated.exit_code if any(each["violations"] for each in found) else 0


def _checked(tables: Sequence[str], options: Options) -> list[dict[str, Any]]:
    """The records of tables: of small ones out of their files, of the others by Spark."""
    from backstory.upkeep.checking import check_small

    found = [answer_from_files(options, each, check_small) for each in tables]
    if None in found:
        with opened(options, *tables) as warehouse, busy(options, "Checking ..."):
            both = zip(tables, found, strict=True)
            found = [warehouse.check(name) if each is None else each for name, each in both]
    return [record for each in found for record in each or ()]


def _all_checked(options: Options) -> list[dict[str, Any]]:
    """The records of every table; those whose layout is not known are told of beside."""
    from backstory.stores.iceberg.store import tables
    from backstory.upkeep.checking import check, check_small, each_known

    names = answer_from_metadata(options, lambda catalog: catalog.tables())
    found, strange = each_known(names or (), lambda table: answer_from_files(options, table, check_small))
    left = [table for table, records in found.items() if records is None]
    if names is None or left:
        with opened(options) as warehouse, busy(options, "Checking ..."):
            store = warehouse.store
            by_spark, more = each_known(tables(store) if names is None else left, partial(check, store))
        found.update(by_spark)
        strange += more
    for table in () if options.quiet else strange:
        errors.print(f"{table}: of no layout that backstory knows; it was not checked.", markup=False)
    return [record for table in sorted(found) for record in found[table] or ()]


def repair(table: str, *, apply: Flag = False, options: Options = DEFAULTS) -> int:
    """Show what would mend a spoilt history, record by record; with --apply it is done, in one commit.

    Healthy records are not touched. Exit code 4 if a law stays broken that no mending can tell how to keep.

    Example: `backstory repair crm.customer --apply`

    Args:
        table: The table, as schema.table.
        apply: Commit it.
        options: Common options.
    """
    from backstory.upkeep.repairing import repair_small

    found = None if apply else answer_from_files(options, table, repair_small)
    if found is None:
        with opened(options, table) as warehouse, busy(options, "Checking ..."):
            found = warehouse.table(table).repair(apply=apply)
    if options.answer == "json":
        show_document(found.to_dict())
    elif options.answer == "csv":
        show([_sample(each) for each in found.samples], "csv", ("key", "laws", "before", "after"))
    else:
        _tell_repair(found)
    return Violated.exit_code if found.left else 0


def adopt(
    table: str,
    *,
    layout: Literal["dbt", "sqlmesh", "dlt", "autocdc"],
    key: str = "",
    dry_run: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Read, check and mend a history that another tool writes.

    Only properties of the table are set; the tool goes on to write it, and no door of backstory does.

    Example: `backstory adopt shop.customer_snapshot --layout dbt --key customer_id`

    Args:
        table: The table, as schema.table.
        layout: The tool: dbt snapshots, SQLMesh SCD_TYPE_2, dlt scd2, or AUTO CDC with SCD type 2.
        key: Columns that tell records apart, a,b; not needed where the table's identifier fields tell.
        dry_run: Write nothing; say what would be done.
        options: Common options.
    """
    names = [name.strip() for name in key.split(",") if name.strip()]
    with opened(options, brief=True) as warehouse:
        found = warehouse.adopt(table, layout=layout, key=names, dry_run=dry_run)
    if options.answer == "json":
        show_document(found.to_dict())
    elif options.answer == "csv":
        show([found.to_dict()], "csv")
    else:
        done = "would be read" if dry_run else "is read"
        told = f"{found.table} {done} as a history of {found.layout}, by {', '.join(found.key)}"
        console.print(told if found.changed else f"{found.table} was adopted before.", markup=False)


def _sample(each: "Mapping[str, Any]") -> dict[str, Any]:
    return {**each, "laws": ", ".join(each["laws"])}


def _tell_repair(found: "Repair") -> None:
    """Print some records before and after, and what was done."""
    for each in found.samples:
        console.print(f"{each['key']}: {', '.join(each['laws'])}", markup=False)
        for sign, row in _differences(each["before"], each["after"]):
            told = "  ".join(f"{name} {'–' if value is None else value}" for name, value in row.items())
            console.print(f"  {sign} {told}", markup=False)
    if found.keys > len(found.samples):
        console.print(f"... and {found.keys - len(found.samples)} records more")
    rows = ", ".join(f"{count} {outcome}" for outcome, count in found.counts.items())
    if not any(found.counts.values()):
        console.print(f"{found.table}: there is nothing to mend.", markup=False)
    elif found.applied:
        console.print(f"{found.table}: mended; rows: {rows}.", markup=False)
    else:
        console.print(f"{found.table}: {rows}; nothing was written. Write --apply to do it.", markup=False)
    for law, keys in found.left.items():
        console.print(f"{law} stays broken: {', '.join(keys)}", markup=False)


def _differences(before: list[Any], after: list[Any]) -> list[tuple[str, Any]]:
    """Rows that stay, go and come, by their starts."""
    stays = [(" ", row) for row in before if row in after]
    gone = [("-", row) for row in before if row not in after]
    return sorted([*stays, *gone, *(("+", row) for row in after if row not in before)], key=_by_start)


def _by_start(each: tuple[str, Any]) -> tuple[str, str]:
    return str(next(iter(each[1].values()), "")), "-+".find(each[0]).__str__()


def _tell(found: list[dict[str, Any]]) -> None:
    """Print what is broken, and a line for each table."""
    broken = [{**each, "keys": ", ".join(each["keys"])} for each in found if each["violations"]]
    if broken:
        show(broken, "table", RECORD)
        console.print()
    for table in dict.fromkeys(each["table"] for each in found):
        laws = [each for each in found if each["table"] == table]
        wrong = sum(bool(each["violations"]) for each in laws)
        told = f"{wrong} of {len(laws)} laws are broken" if wrong else f"all {len(laws)} laws hold"
        console.print(f"{table}: {told}", markup=False)
