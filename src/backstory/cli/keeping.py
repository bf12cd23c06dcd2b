"""What keeps tables in good order: `rewind`, `forget`, `maintain`."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from backstory.cli.options import Flag, Options
from backstory.cli.output import console, plain, show
from backstory.cli.read import opened
from backstory.cli.starting import busy
from backstory.model.instant import parse_instant

DEFAULTS = Options()
AGAIN = "Nothing was written; say --apply to do it."


def rewind(table: str, time: str, *, apply: Flag = False, options: Options = DEFAULTS) -> None:
    """Take back what a table learnt after a time; without --apply only tell what would go.

    It goes by what was learnt, not by validity: of a native table by its own recorded time, of a dataset by
    its system time, of any other table by its commits. On a native table what was believed in between stays
    known (as-of --known-at), and a rewind can be taken back by a rewind. A history goes back together with
    its base. Example: backstory rewind crm.customer 2026-03-01 --apply

    Args:
        table: The table, as schema.table, or a dataset's name.
        time: ISO 8601; UTC without an offset, a date is its first instant.
        apply: Do it.
        options: Common options.
    """
    when = parse_instant(time)
    with opened(options, table) as store, busy(options, "Reading what was learnt ..."):
        done = store.table(table).rewind(when, apply=apply).to_dict()
    if options.answer != "table":
        tell(done, options)
        return
    for each in (done, *done["also"]):
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in each["counts"].items())
        word = "taken back" if each["applied"] else "to take back"
        console.print(
            f"{each['table']}: {len(each['commits'])} commits {word}; {counts or 'nothing changes'}"
        )
        if each["keys"]:
            keys = ", ".join(
                " ".join(f"{name}={value}" for name, value in key.items()) for key in each["keys"]
            )
            console.print(f"  keys: {keys}", markup=False)
    if not apply:
        console.print(AGAIN)


def tell(done: Mapping[str, Any], options: Options) -> None:
    """Print one document: as JSON, or as a row of CSV."""
    if options.answer == "json":
        sys.stdout.write(json.dumps(done, default=plain, ensure_ascii=False) + "\n")
    else:
        show([done], options.answer)
