"""Look after histories: `check`, `repair`, `adopt`."""

from typing import Any

from backstory.cli.options import Flag, Options
from backstory.cli.output import console, errors, show
from backstory.cli.read import opened
from backstory.cli.starting import busy
from backstory.errors import UsageError, Violated

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
    with opened(options, *tables) as warehouse, busy(options, "Checking ..."):
        if all:
            from backstory.upkeep.checking import check_all

            found, strange = check_all(warehouse.store)
            for table in () if options.quiet else strange:
                errors.print(f"{table}: of no layout that backstory knows; it was not checked.", markup=False)
        else:
            found = warehouse.check(*tables)
    if options.answer == "table":
        _tell(found)
    else:
        show(found, options.answer, RECORD)
    return Violated.exit_code if any(each["violations"] for each in found) else 0


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
