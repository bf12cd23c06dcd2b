"""The laws that `backstory check` reports, with their meaning, a typical cause and the remedy."""

from collections.abc import Mapping
from typing import Final

from backstory.model.layout import Layout
from backstory.upkeep.laws.terms import LAWS, Law

WRITER: Final = "another program wrote to the table"
REPAIR: Final = "`backstory repair`"
REWIND: Final = "`backstory rewind` to a time before the write"
# For each law: its meaning, a typical cause, and the remedy.
TEXTS: Final[Mapping[Law, tuple[str, str, str]]] = {
    Law.NULL_KEY: (
        "No key column is NULL. Only the marks of copies and truncates have no key.",
        "another program wrote rows without a key, or the key of an adopted table is wrong (see below)",
        f"{REPAIR}, which removes these rows, because no query by key finds them",
    ),
    Law.UNIQUE_KEY: (
        "A table with one row for each record has each key once.",
        "another program appended rows that already existed",
        "remove the extra rows with that program, or load the rows again from the source",
    ),
    Law.UNIQUE_START: (
        "No two versions of a record have the same start.",
        "another tool loaded a delivery twice, or the key of an adopted table lacks a column (see below)",
        f"{REPAIR}, which keeps the version that was recorded last",
    ),
    Law.START_BEFORE_END: (
        "A version has a start, and ends after it.",
        "another tool swapped the two times, wrote no start, or writes inclusive ends",
        f"set inclusive ends to the start of the next version; otherwise {REPAIR}, which removes the rows",
    ),
    Law.NO_OVERLAP: (
        "Versions of a record do not overlap.",
        "another tool did not close the previous version, or changed its end",
        f"{REPAIR}, which ends each version at the start of the next one at the latest",
    ),
    Law.ONE_OPEN: (
        "At most one version of a record is open.",
        "another tool did not close the previous version",
        f"{REPAIR}, which closes the earlier version at the start of the next one",
    ),
    Law.OPEN_MARKER: (
        "The marker of open versions (`is_current`, `_fivetran_active`, `version_state`) fits their ends.",
        "an UPDATE changed the end or the marker, but not both",
        f"{REPAIR}, which derives the marker from the end, except for a version of Fivetran without an end",
    ),
    Law.ROW_HASH: (
        "The stored hash is the hash of the row's values, or `erased`.",
        "an UPDATE changed values without their hash",
        f"{REWIND}; `repair` cannot decide whether the values or the hash are wrong",
    ),
    Law.OFFSETS: (
        "Offsets are 0, 1, 2, … without gaps or repeats, and fit the commits. `keys` contains offsets.",
        "another program removed or added rows",
        REWIND,
    ),
    Law.OPERATIONS: (
        "Each event has one of the four operations, and may follow the previous event of its record.",
        "another program removed, added or changed rows",
        REWIND,
    ),
    Law.WATERMARK: (
        "No event time is NULL or later than the watermark of the dataset.",
        "another program added rows or changed their times",
        REWIND,
    ),
    Law.MEMORY: (
        "Each row is a version, or a memory row without a length whose fields in `_memory` fit together.",
        WRITER,
        REPAIR,
    ),
    Law.RECORDED: (
        "`recorded_at` is set and earlier than `_memory.ended_at`. Neither is later than the newest commit.",
        "another program copied rows from another table",
        REPAIR,
    ),
    Law.ONE_BELIEF: (
        "For each recorded time, at most one version of a record covers an instant.",
        WRITER,
        f"{REPAIR}, which removes former statements that overlap",
    ),
    Law.ONE_FACT: (
        "No two facts of a record have the same instant and the same order.",
        "another program appended rows that already existed",
        REPAIR,
    ),
    Law.FOLD: (
        "The versions of a record are the result of applying its stored events and copies in order.",
        "another program changed or removed a version, but not the events",
        f"{REPAIR}, which computes the versions again, unless a needed row is missing",
    ),
    Law.SETTLED: (
        "No stored event is within the settled time.",
        WRITER,
        REPAIR,
    ),
    Law.PROPERTIES: (
        "The table's properties and columns fit its layout. `keys` contains names of properties and columns.",
        "ALTER TABLE dropped or renamed a column, or changed a property",
        "restore the column or the property",
    ),
}

INTRODUCTION: Final = """`backstory check` reports one record for each law of a table's layout. `status` is
`violated` if a row breaks the law. [Look after a history](../how-to/keeping.md#check-its-laws) describes the
command."""
REPAIRS: Final = """`backstory repair TABLE` shows the fix, and `--apply` commits it. It works on tables
with versions, in any layout. A dataset (`odf`) is append-only: rewind it, or add the dataset again and
pull. A broken log of a dataset (`odf-log`) can be dropped, because the next pull writes it again. Load
the rows of any other table again from the source."""
KEYS: Final = """If the key of an adopted table is wrong or lacks a column, many keys break `null-key`,
`unique-start`, `no-overlap` or `one-open`. Do not repair such a table, because `repair` would remove or
shorten valid versions. Run `backstory adopt` again with the right `--key`."""
NOTED: Final = """A record with the law `foreign-writes` and the status `noted` is not a violation. It lists
the commits of other programs since the last delivery."""
LAYOUTS: Final = """## The laws of each layout

[Layouts](layouts.md) describes the layouts."""


def laws_page() -> list[str]:
    """The parts of the page of laws: a table of all laws, and the laws of each layout."""
    laws = [f"| `{law}` | {' | '.join(TEXTS[law])} |" for law in Law]
    layouts = [f"| `{layout}` | {', '.join(f'`{law}`' for law in LAWS[layout])} |" for layout in Layout]
    table_of_laws = ["| law | meaning | typical cause of a violation | remedy |", "|---|---|---|---|", *laws]
    table_of_layouts = ["| layout | laws |", "|---|---|", *layouts]
    texts = [REPAIRS, KEYS, NOTED, LAYOUTS]
    return ["# Laws", INTRODUCTION, "\n".join(table_of_laws), *texts, "\n".join(table_of_layouts)]
