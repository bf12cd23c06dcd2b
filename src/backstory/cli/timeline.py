"""The command `timeline`: one record's life."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from backstory.cli.asking import answer_from_files, opened
from backstory.cli.keys import (
    named_key,
    no_known_times,
    parse_key,
    require_key,
)
from backstory.cli.options import Key, Limit, Names, Options, parse_names
from backstory.cli.output import console, room, show, tell_line
from backstory.cli.starting import busy
from backstory.model.instant import optional_instant
from backstory.model.keys import key_of_words
from backstory.model.table import table_name
from backstory.reading.timelines import Axis, Timeline, require_axis

if TYPE_CHECKING:
    from backstory.stores.metadata.rows import Files

DEFAULTS = Options()


def timeline(
    table: str,
    *key: str,
    named: Annotated[Key, Parameter(name="--key")] = (),
    axis: Axis = "valid",
    known_at: str | None = None,
    columns: Names = (),
    svg: Path | None = None,
    url: str | None = None,
    limit: Limit = None,
    options: Options = DEFAULTS,
) -> None:
    """Draw one record's life: a bar for each version, and what changed in it.

    json and csv list the statements: values, valid_from and valid_to, the time the table held them
    (known_from, known_to), and the commit. --axis both also shows what was later corrected: a lane for each
    time at which the table learned something else.

    Example: `backstory timeline crm.customer 42 --axis both --svg life.svg`

    Args:
        table: The table, as schema.table.
        key: The key's value, or name=value for each column of a key of several.
        named: The same as an option, as other commands have it.
        axis: valid: when it was true. both: also when it was known.
        known_at: Show what the table held at this time.
        columns: Only these columns, a,b, beside the key and the times.
        svg: Also write the picture to this file.
        url: A model's history in a database, whose key is given as name=value.
        limit: The largest number of versions, oldest first; a drawing has all.
        options: Common options.
    """
    known, key = optional_instant(known_at), (*key, *named)
    require_key(key)
    require_axis(axis, known)
    names = parse_names(columns)
    if url is None:
        life = _life(options, table, key, axis, known, names)
    else:
        life = _life_in_database(url, table, key, names, plain=axis == "valid" and known is None)
    if svg is not None:
        life.save(svg)
    nothing = "" if life.versions else f"{life} ({life.title})"
    if options.answer == "table":
        console.print(nothing or life.drawn(room(wide=options.wide)), markup=False)
    else:
        show(life.versions[:limit], options.answer)
        if nothing and not options.quiet:
            tell_line(nothing)


def _life(
    options: Options,
    table: str,
    key: tuple[str, ...],
    axis: Axis,
    known_at: datetime | None,
    columns: list[str],
) -> Timeline:
    from backstory.reading.arrow import life

    def of_files(files: "Files") -> Timeline:
        wanted = key_of_words(files.table.shape.source_key, key)
        return life.life(files, wanted, axis, known_at, columns)

    small = answer_from_files(options, table, of_files)
    if small is not None:
        return small
    with opened(options, table, brief=True) as store, busy(options, "Reading ..."):
        stored = store.table(table)
        return stored.timeline(parse_key(stored, key), axis=axis, known_at=known_at, columns=columns)


def _life_in_database(
    url: str, table: str, key: tuple[str, ...], columns: list[str], *, plain: bool
) -> Timeline:
    from backstory.reading.statements.database_history import life_of

    if not plain:
        raise no_known_times()
    return life_of(url, table_name(table), named_key(key), columns)
