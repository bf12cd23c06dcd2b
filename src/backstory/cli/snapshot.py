"""`backstory snapshot`: a full copy of a source becomes history."""

import re
from typing import Any, Final

from backstory.cli.asking import opened
from backstory.cli.flags import in_flags
from backstory.cli.options import Flag, Names, Options, names_given
from backstory.cli.outcomes import DRY
from backstory.cli.output import console, show_one
from backstory.cli.starting import busy
from backstory.doors.native.asked import Deletes, Format, asked
from backstory.errors import UsageError
from backstory.model.table import table_name

DEFAULTS = Options()
_COMMA: Final = re.compile(r",(?![^()]*\))")


def snapshot(
    source: str,
    /,
    *,
    into: str,
    key: Names = (),
    at: str | None = None,
    deletes: Deletes = "close",
    max_delete_ratio: float = 0.5,
    max_null_ratio: float = 0.5,
    allow_empty: Flag = False,
    track: Names = (),
    ignore: Names = (),
    overwrite: Names = (),
    rename: Names = (),
    retype: Names = (),
    backfill: Flag = False,
    remember: Flag = False,
    backfill_added: Flag = False,
    restate: Flag = False,
    format: Format | None = None,  # noqa: A002 - the option's name
    separator: str | None = None,
    encoding: str | None = None,
    decimal: str | None = None,
    null: str | None = None,
    quote: str | None = None,
    type: Names = (),  # noqa: A002 - the option's name
    dry_run: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Keep the history of a source: compare a full copy with the table, and store what changed.

    The first copy creates the table, which keeps the key and the tracked columns: they need not be repeated.
    A record that is missing from the copy is closed. A copy that changes nothing makes no commit.

    Example: `backstory snapshot customers.csv --into crm.customer --key customer_id`

    Args:
        source: A file, a folder, a glob in quotes (CSV, Parquet or JSON lines), or table:schema.table.
        into: The table, as schema.table.
        key: Key columns, separated by commas.
        at: The time the copy was taken, ISO 8601. Default: now. A copy that changes nothing leaves no trace
            of its time unless the table remembers its copies (option --remember).
        deletes: What happens to records that are missing from the copy.
        max_delete_ratio: The largest share of the records that one copy may close.
        max_null_ratio: The largest share of a column's values that one copy may replace by NULL.
        allow_empty: Accept an empty source.
        track: Columns whose changes make versions. Default: all.
        ignore: Columns whose changes make no versions.
        overwrite: Columns overwritten in place, with no history kept.
        rename: New names of columns: old=new.
        retype: New types of columns: amount=DOUBLE. Refused where a stored value would change.
        backfill: Accept a copy older than everything stored; from then on the table remembers its copies.
        remember: From now on store the time of every copy, also of those that change nothing, so that a late
            copy holds only until the next one. Needed once: the table keeps it.
        backfill_added: Write the values of a new column into the open versions instead of opening new ones.
        restate: Replace the stored copy for the same time.
        format: Format of the files, whatever their endings: csv, parquet, jsonl or json.
        separator: The character between the cells of a CSV file. Default: a comma. Use tab for a tab.
        encoding: The encoding of CSV or JSON files, such as latin-1 or cp1252. Default: UTF-8.
        decimal: The decimal point of numbers in a CSV file: a point or a comma. Default: a point.
        null: The text that means NULL in a CSV file, such as NA. Default: an empty cell.
        quote: The character around values of a CSV file. Default: a double quote.
        type: Types of columns in CSV or JSON files: zip=STRING. Default: the type that fits all values.
        dry_run: Print counts, sample keys and the columns that drive the changes; write nothing.
        options: Common options.
    """
    from backstory.doors.native.files import TABLE, source_files

    table = table_name(into)
    given = asked(
        key=_names(key),
        at=at,
        deletes=deletes,
        max_delete_ratio=max_delete_ratio,
        max_null_ratio=max_null_ratio,
        allow_empty=allow_empty,
        track=_names(track),
        ignore=_names(ignore),
        overwrite=_names(overwrite),
        rename=_pairs(rename, "--rename old=new"),
        retype=_pairs(retype, "--retype column=TYPE"),
        backfill=backfill,
        remember=remember,
        backfill_added=backfill_added,
        restate=restate,
        format=format,
        separator=separator,
        encoding=encoding,
        decimal=decimal,
        null=null,
        quote=quote,
        type=_pairs(type, "--type column=TYPE"),
        dry_run=dry_run,
    )
    if source.startswith(TABLE):
        table_name(source.removeprefix(TABLE))
    else:
        from backstory.doors.native.ahead import refuse_ahead

        refuse_ahead(source_files(source, format), given)
    with opened(options) as warehouse:
        from backstory.doors.native import door

        with busy(options, "Comparing with what is stored ..."):
            answer = door.snapshot(warehouse.store, source, table, given)
    _tell(answer.to_dict(), options, dry_run=dry_run)


def _names(given: tuple[str, ...]) -> list[str] | None:
    return names_given(given) or None


def _pairs(given: tuple[str, ...], form: str) -> dict[str, str]:
    """What an option of this form says of columns; a comma within parentheses parts nothing."""
    pairs = {}
    for each in (part.strip() for text in given for part in _COMMA.split(text) if part.strip()):
        name, equals, word = each.partition("=")
        if not (name and equals and word):
            raise UsageError("bad-option", f"{form.partition(' ')[0]} {each} says nothing.", f"Write {form}.")
        pairs[name] = word
    return pairs


def _tell(told: dict[str, Any], options: Options, *, dry_run: bool) -> None:
    told = {**told, "schema_changes": [in_flags(each).replace("`", "") for each in told["schema_changes"]]}
    if options.answer == "table":
        nested = ("schema_changes", "keys", "columns", "warnings")
        told = {name: _spoken(value) if name in nested else value for name, value in told.items()}
    show_one(told, options.answer)
    if dry_run and options.answer == "table":
        console.print(DRY)


def _spoken(value: Any) -> str | None:
    """A list or a mapping as people read it in a cell."""
    if isinstance(value, dict):
        parts = (f"{name}: {_spoken(each)}" for name, each in value.items() if each)
        return "; ".join(parts) or None
    return ", ".join(map(str, value)) or None if isinstance(value, list) else str(value)
