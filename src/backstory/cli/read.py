"""The reading commands: `tables`, `current`, `as-of`, `timeline`, `log`."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstory.cli.asking import answer_from_files, ask, each_from_metadata, opened, show_state
from backstory.cli.options import Limit, Options
from backstory.cli.outcomes import short
from backstory.cli.output import console, errors, show, without_idle
from backstory.cli.starting import busy
from backstory.errors import UsageError
from backstory.model.instant import optional_instant, parse_instant
from backstory.model.table import named, table_name
from backstory.reading.timelines import Axis, Timeline, require_axis
from backstory.table import Table

if TYPE_CHECKING:
    from backstory.stores.metadata.described import Catalog
    from backstory.stores.metadata.rows import Files

DEFAULTS = Options()
TABLES = ["table", "layout", "rows", "open_versions", "last_commit"]
TABLES_OF_VERSIONS = [*TABLES[:-1], "memory_rows", "settled", TABLES[-1]]
LOG = ["committed_at", "snapshot_id", "operation", "door", "token", "counts"]
LOG_OF_VERSIONS = ["committed_at", "recorded_at", *LOG[1:]]
LOG_OF_DATASET = ["sequence", "system_time", "offsets", "watermark", "counts", "block"]


def tables(*, limit: Limit = None, options: Options = DEFAULTS) -> None:
    """List the tables of the warehouse: layout, rows, open versions, last commit.

    Rows of a native table are its versions; beside them stand the rows that only remember, and the interval
    that is settled. Spark is not started.

    Args:
        limit: At most so many tables.
        options: Common options.
    """
    found = _inventory(options)[:limit]
    columns = TABLES_OF_VERSIONS if any("settled" in row for row in found) else TABLES
    if options.answer == "table":
        found = [{**row, "last_commit": _second(row["last_commit"])} for row in found]
        columns = without_idle(columns, found, ("memory_rows", "settled"))
    show(found, options.answer, columns)


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


def current(
    table: str,
    *,
    known_at: str | None = None,
    url: str | None = None,
    limit: Limit = None,
    options: Options = DEFAULTS,
) -> None:
    """Show the rows that are true now, in the order of their key.

    Example: `backstory current crm.customer --known-at 2026-01-31`

    Args:
        table: The table, as schema.table.
        known_at: Answer with what the table held at this time.
        url: A model's history in a database: duckdb:///path or postgresql://host/name.
        limit: At most so many rows.
        options: Common options.
    """
    known = optional_instant(known_at)
    if url is not None:
        _show_from_database(url, table, None, known, limit, options)
        return
    from backstory.reading.arrow import point_in_time

    show_state(
        options,
        table,
        limit,
        lambda files: point_in_time.current(files, known),
        lambda found: found.current(known_at=known),
    )


def as_of(
    table: str,
    time: str,
    *,
    known_at: str | None = None,
    url: str | None = None,
    limit: Limit = None,
    options: Options = DEFAULTS,
) -> None:
    """Show the rows that were true at a time, in the order of their key.

    Example: `backstory as-of crm.customer 2026-01-31 --known-at 2026-02-15`

    Args:
        table: The table, as schema.table.
        time: ISO 8601; UTC without an offset, a date is its first instant.
        known_at: Answer with what the table held at this time.
        url: A model's history in a database: duckdb:///path or postgresql://host/name.
        limit: At most so many rows.
        options: Common options.
    """
    when, known = parse_instant(time), optional_instant(known_at)
    if url is not None:
        _show_from_database(url, table, when, known, limit, options)
        return
    from backstory.reading.arrow import point_in_time

    show_state(
        options,
        table,
        limit,
        lambda files: point_in_time.as_of(files, when, known),
        lambda found: found.as_of(when, known_at=known),
    )


def _show_from_database(
    url: str,
    table: str,
    time: datetime | None,
    known_at: datetime | None,
    limit: int | None,
    options: Options,
) -> None:
    from backstory.reading.statements.found import rows_of

    if known_at is not None:
        raise no_known_times()
    columns, rows = rows_of(url, table_name(table), time)
    show(rows[:limit], options.answer, columns)


def no_known_times() -> UsageError:
    """The error for a question of known times to a database."""
    return UsageError(
        "bad-option", "A history in a database keeps no known times.", "Leave them out, or --url."
    )


def timeline(
    table: str,
    *key: str,
    axis: Axis = "valid",
    known_at: str | None = None,
    svg: Path | None = None,
    url: str | None = None,
    limit: Limit = None,
    options: Options = DEFAULTS,
) -> None:
    """Draw one record's life: a bar for each version, and what changed in it.

    As json or csv its statements: the values, valid_from and valid_to, while they were told (known_from,
    known_to), and the commit that said so. With --axis both also what is no longer told: a lane for each
    time at which the table learnt something else.

    Example: `backstory timeline crm.customer 42 --axis both --svg life.svg`

    Args:
        table: The table, as schema.table.
        key: The key's value, or name=value for each column of a key of several.
        axis: valid: when it was true. both: also when it was known.
        known_at: Tell what the table held at this time.
        svg: Write the picture into this file too.
        url: A model's history in a database, whose key is given as name=value.
        limit: At most so many versions, the oldest first; a drawing has all.
        options: Common options.
    """
    known = optional_instant(known_at)
    require_key(key)
    require_axis(axis, known)
    if url is None:
        life = _life(options, table, key, axis, known)
    else:
        life = _life_in_database(url, table, key, plain=axis == "valid" and known is None)
    if svg is not None:
        life.save(svg)
    if options.answer == "table":
        console.print(life.drawn(console.width if console.is_terminal else None), markup=False)
    else:
        show(life.versions[:limit], options.answer)
        if not life.versions and not options.quiet:
            errors.print(str(life), markup=False)


def _life(
    options: Options, table: str, key: tuple[str, ...], axis: Axis, known_at: datetime | None
) -> Timeline:
    from backstory.reading.arrow import life

    def of_files(files: "Files") -> Timeline:
        names = files.table.shape.source_key
        wanted = key_of_words(names, key)
        return life.life(
            files, dict.fromkeys(names[:1], wanted) if isinstance(wanted, str) else wanted, axis, known_at
        )

    small = answer_from_files(options, table, of_files)
    if small is not None:
        return small
    with opened(options, table, brief=True) as store, busy(options, "Reading ..."):
        found = store.table(table)
        return found.timeline(key_given(found, key), axis=axis, known_at=known_at)


def _life_in_database(url: str, table: str, key: tuple[str, ...], *, plain: bool) -> Timeline:
    from backstory.reading.statements.found import life_of

    if not plain:
        raise no_known_times()
    wanted = key_of_words((), key)
    if isinstance(wanted, str):
        raise UsageError("other-key", "A database does not tell the key's columns.", "Write name=value.")
    return life_of(url, table_name(table), wanted)


def log(table: str, *, limit: Limit = None, options: Options = DEFAULTS) -> None:
    """List a table's commits, newest first: time, door, token, counts.

    Those of a dataset show its blocks, offsets and watermarks, those of a native table when it was recorded.
    Spark is not started.

    Args:
        table: The table, as schema.table, or a dataset's name.
        limit: At most so many commits.
        options: Common options.
    """
    from backstory.reading.commits import commits

    def asked(catalog: "Catalog") -> list[dict[str, Any]]:
        found = named(table, lambda each: catalog.describe(each) is not None)
        return commits(catalog, found or table_name(table))

    found = ask(options, asked)[:limit]
    of_dataset, of_versions = (bool(found) and name in found[0] for name in ("block", "recorded_at"))
    columns = LOG_OF_DATASET if of_dataset else LOG_OF_VERSIONS if of_versions else LOG
    if options.answer == "table":
        found = [_block(commit) for commit in found] if of_dataset else found
        found = [{**commit, "committed_at": _second(commit["committed_at"])} for commit in found]
        for_programs = {"token", "operation", "committed_at" if of_versions else ""}
        columns = [name for name in columns if name not in for_programs]
    show(found, options.answer, columns)


def _second(instant: datetime | None) -> str | None:
    return None if instant is None else short(instant)


def _block(commit: dict[str, Any]) -> dict[str, Any]:
    """A dataset's commit as people read it in a row."""
    times = {name: commit[name] and short(commit[name]) for name in ("system_time", "watermark")}
    offsets, block = commit["offsets"], commit["block"]
    spoken = "{} to {}".format(*offsets) if offsets else None
    return {**commit, **times, "offsets": spoken, "block": block and block[:16]}


def require_key(given: tuple[str, ...]) -> None:
    """Raise UsageError if no key is given."""
    if not given:
        raise UsageError("no-key", "No key is given.", "Write its value, or a=1 b=2.")


def key_given(table: Table, given: tuple[str, ...]) -> str | dict[str, str]:
    """What the words of a command say of a key of the table."""
    from backstory.stores.iceberg.store import existing

    return key_of_words(existing(table.store, table.name).shape.source_key, given)


def key_of_words(names: Sequence[str], given: tuple[str, ...]) -> str | dict[str, str]:
    """The value of a key of one column, whatever is in it; else `name=value` for each column of `names`."""
    found = {}
    for word in given:
        known = max((name for name in names if word.startswith(f"{name}=")), key=len, default=None)
        name = word.partition("=")[0] if known is None else known
        if known is None and len(given) == 1 and (len(names) == 1 or name == word):
            return word
        found[name] = word[len(name) + 1 :]
    return found
