"""`backstory tables`: what a warehouse holds, and which one was searched where that is nothing."""

from typing import Any

from backstory.cli.asking import each_from_metadata, opened
from backstory.cli.flags import in_flags
from backstory.cli.options import Limit, Options
from backstory.cli.outcomes import short
from backstory.cli.output import and_error, show, tell_error, tell_line, without_idle
from backstory.errors import UsageError
from backstory.settings import CATALOG

DEFAULTS = Options()
TABLES = ["table", "layout", "rows", "open_versions", "last_commit"]
TABLES_OF_VERSIONS = [*TABLES[:-1], "memory_rows", "settled", TABLES[-1]]


def tables(*, limit: Limit = None, options: Options = DEFAULTS) -> int:
    """List the tables of the warehouse: layout, rows, open versions, last commit.

    For a native table, rows counts its versions; memory_rows counts the rows that only serve late copies,
    and settled is the interval for which none is accepted. If there are no tables, the warehouse that was
    searched is named. Spark starts only for a catalog that pyiceberg cannot open.

    Args:
        limit: The largest number of tables.
        options: Common options.
    """
    found = _inventory(options)
    moved = [each["error"] for each in found if "error" in each]
    if moved and len(moved) == len(found):
        raise UsageError(**moved[0])
    if not found and not options.quiet:
        tell_line(_nothing(options))
    found = found[:limit]
    columns = TABLES_OF_VERSIONS if any("settled" in row for row in found) else TABLES
    if options.answer == "table":
        found = [{**row, "last_commit": row["last_commit"] and short(row["last_commit"])} for row in found]
        columns = columns if options.wide else without_idle(columns, found, ("memory_rows", "settled"))
        for each in moved:
            tell_error(each)
    names = columns if options.answer == "table" else and_error(columns, found)
    show(found, options.answer, names, wide=options.wide)
    return UsageError.exit_code if moved else 0


def _nothing(options: Options) -> str:
    """That there are no tables, and where they were looked for."""
    settings = options.settings()
    absent = not settings.catalogs[CATALOG] and not settings.warehouse.exists()
    return in_flags(f"There are no tables in {settings.searched}{': it does not exist' if absent else ''}.")


def _inventory(options: Options) -> list[dict[str, Any]]:
    """A row for each table; Spark is asked for those that nothing else can read, and for no others."""
    from backstory.reading.commits import inventory

    found = each_from_metadata(options, lambda catalog, each: inventory(catalog, [each]))
    if found is None or None in found.values():
        from backstory.stores.metadata.in_session import InSession

        with opened(options, brief=True) as started:
            catalog = InSession(started.store)
            if found is None:
                return inventory(catalog)
            found |= {each: inventory(catalog, [each]) for each, rows in found.items() if rows is None}
    return [row for rows in found.values() for row in rows or ()]
