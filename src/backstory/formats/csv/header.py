"""Which columns of a file are read (section 2.8, columns of file, request and table)."""

from collections import Counter
from collections.abc import Collection, Container, Sequence

from backstory.errors import MAX_KEYS, Refused
from backstory.model.layout import SYSTEM_COLUMNS

LONGEST = 128


def chosen_columns(
    file: str, header: Sequence[str], columns: Container[str], wanted: Collection[str]
) -> list[str]:
    """The columns of the header that are wanted, in the header's order.

    A Fivetran system column that the table lacks is passed over. Raises Refused for any other
    column that the table lacks, for a name that stands twice, and for a header without any that is wanted:
    its rows would be passed over without a word.
    """
    known = [name for name in header if name in columns or name in SYSTEM_COLUMNS]
    if header and not known:
        # What stands there may be a row of values: it is not shown.
        raise Refused(
            "no-header",
            f"{file}, line 1: the header names no column of the table.",
            "Nothing was written; send the batch again with a header, and with its own key.",
        )
    refuse_repeated(file, header, "Nothing was written; send the batch again with one column for each name.")
    unknown = [name for name in header if name not in known]
    if unknown:
        raise Refused(
            "unknown-column",
            f"{file}, line 1: the table has no column {_listed(unknown)}.",
            "Nothing was written; add the column to the table first.",
        )
    chosen = [name for name in header if name in columns and name in wanted]
    if header and not chosen:
        raise Refused(
            "missing-column",
            f"{file}, line 1: the header lacks {_listed(sorted(wanted))}.",
            "Nothing was written; send the batch again with the columns that its rows need.",
        )
    return chosen


def refuse_repeated(file: str, header: Sequence[str], remedy: str) -> None:
    """Raises Refused for a name that stands twice: which of the two is meant cannot be told."""
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        told = f"{file}, line 1: the header names {_listed(twice)} more than once."
        raise Refused("repeated-column", told, remedy)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(name[:LONGEST] for name in names[:MAX_KEYS])
    return shown if len(names) <= MAX_KEYS else f"{shown} and {len(names) - MAX_KEYS} more"
