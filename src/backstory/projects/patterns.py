"""Declarations for the tables of a pattern such as `erp.*`, from its database and from past runs.

A table with its own declaration belongs to no pattern. Every other table belongs to the first pattern that
matches. If a database cannot be listed, the tables of past runs are delivered as usual, and the pattern
fails.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final

from backstory.errors import BackstoryError, UsageError
from backstory.projects.declarations import Declaration, Project, TablePattern, fill_in, refuse_unknown
from backstory.sources.databases.address import Database, parse_address
from backstory.sources.databases.copies import Keys

# Placeholders for the parts of a table's name while an address is parsed.
_SCHEMA: Final = "backstory_schema"
_TABLE: Final = "backstory_table"


def declare_tables(
    project: Project,
    logged: Iterable[Mapping[str, Any]],
    exists: Callable[[str], bool],
    list_keys: Callable[[Database], Keys] | None,
) -> Project:
    """The project, with each pattern replaced by declarations for the pattern's tables.

    `logged` are the rows of the log of runs, and `list_keys` lists the tables of a database. If `list_keys`
    is None, the tables of past runs are declared, or the pattern if no run has any. A table that the database
    no longer has is declared as long as it `exists` in the warehouse. A pattern whose tables cannot be listed
    is declared too, with the error. Raises UsageError if `after` names a table that no pattern has.
    """
    if not project.patterns:
        return project
    former = {row["name"] for row in logged if row["project"] == str(project.path)}
    taken = {table for declared in project.declarations for table in declared.writes}
    tables: dict[str, list[Declaration]] = {}
    for pattern in project.patterns:
        known = sorted(name for name in former - taken if pattern.fits(name) and exists(name))
        if list_keys is None:
            mine = [pattern.declare(name, ()) for name in known] or [_declare_whole(pattern)]
        else:
            mine = _declare_listed(pattern, known, taken, exists, list_keys)
        tables[pattern.name] = mine
        taken |= {declared.name for declared in mine}
    declarations = [*project.declarations, *(declaration for mine in tables.values() for declaration in mine)]
    names_of = {name: tuple(declaration.name for declaration in mine) for name, mine in tables.items()}
    followed = tuple(_with_tables(declaration, project.patterns, names_of) for declaration in declarations)
    expanded = Project(project.path, followed)
    if list_keys is not None:
        refuse_unknown(expanded)
    return expanded


def _declare_listed(
    pattern: TablePattern,
    known: Sequence[str],
    taken: AbstractSet[str],
    exists: Callable[[str], bool],
    list_keys: Callable[[Database], Keys],
) -> list[Declaration]:
    """The tables that the database lists, and the known tables.

    If listing fails, the known tables and the pattern are declared instead.
    """
    try:
        listed = tables_of_source(pattern, list_keys)
    except BackstoryError as error:
        return [*(pattern.declare(name, ()) for name in known), _declare_whole(pattern, error)]
    keys = {name: key for name, key in listed.items() if pattern.fits(name)}
    if not keys and not known:
        absent = UsageError(
            "nothing-there",
            f"{pattern.place}: the database has no tables that fit {pattern.name}.",
            "Check the pattern, its exceptions and the address.",
        )
        return [_declare_whole(pattern, absent)]
    return [
        _declare(pattern, name, keys[name], exists)
        if name in keys
        else _declare_without_source(pattern, name)
        for name in sorted({*known, *keys} - taken)
    ]


def tables_of_source(
    pattern: TablePattern, list_keys: Callable[[Database], Keys]
) -> Mapping[str, tuple[str, ...]]:
    """The tables of a pattern's database by their names in the warehouse, each with its key.

    Raises UsageError if the address lacks the schema of its tables, and the errors of `list_keys`.
    """
    database = parse_pattern(fill_in(pattern.source, pattern.place))
    return names_in_warehouse(pattern, database, list_keys(database))


def parse_pattern(source: str) -> Database:
    """The database in a filled address. The address's table contains `{table}`, and perhaps `{schema}`."""
    return parse_address(source.replace("{schema}", _SCHEMA).replace("{table}", _TABLE))


def names_in_warehouse(
    pattern: TablePattern, database: Database, keys: Keys
) -> Mapping[str, tuple[str, ...]]:
    """The keys of the tables that a pattern's address can name, by the tables' names in the warehouse."""
    form = re.escape(database.table or "")
    if keys and "." not in form and all("." in name for name in keys):
        raise UsageError(
            "wrong-project",
            f"{pattern.place}: the tables of {database.name} have schemas, and the address names none.",
            "Write `table={schema}.{table}` in the address, or the name of a schema.",
        )
    form = form.replace(_SCHEMA, "(?P<schema>[^.]+)", 1).replace(_TABLE, "(?P<table>.+)", 1)
    names = {}
    for name, key in keys.items():
        if parts := re.fullmatch(form, name):
            schema = parts.groupdict().get("schema") or pattern.name.partition(".")[0]
            names[f"{schema}.{parts['table']}"] = key
    return names


def _declare(
    pattern: TablePattern, name: str, key: Sequence[str], exists: Callable[[str], bool]
) -> Declaration:
    """The declaration of a table. It has an error if its name is invalid or its key is unknown."""
    try:
        declared = pattern.declare(name, key)
        if "key" not in declared.options and not exists(name):
            raise _no_key(declared)
    except UsageError as error:
        return Declaration(name, "snapshot", pattern.source, {}, pattern=pattern.name, error=error)
    return declared


def _declare_whole(pattern: TablePattern, error: BackstoryError | None = None) -> Declaration:
    return Declaration(pattern.name, "snapshot", pattern.source, {}, expect=pattern.expect, error=error)


def _declare_without_source(pattern: TablePattern, name: str) -> Declaration:
    """The declaration of a table that the database no longer has, with the error that reports this."""
    remedy = (
        f"Name it below `except` of {pattern.name} if this is intended. `backstory drop {name}` then ends "
        "its history."
    )
    error = UsageError("no-table", f"The database no longer has the table of {name}.", remedy)
    return replace(pattern.declare(name, ()), error=error)


def _no_key(declared: Declaration) -> UsageError:
    return UsageError(
        "bad-option",
        f"The database declares no key for {declared.name}.",
        f"Declare {declared.name} with a `key`, or name it below `except` of {declared.pattern}. With "
        f"`key: row`, {declared.pattern} takes such tables without a key.",
    )


def _with_tables(
    declared: Declaration, patterns: Iterable[TablePattern], names_of: Mapping[str, Sequence[str]]
) -> Declaration:
    """The declaration, with a pattern's name in `after` replaced by the tables of the pattern.

    A table that does not exist because its pattern failed is replaced by the pattern.
    """
    after = list[str]()
    for other in declared.after:
        failed = [
            pattern.name
            for pattern in patterns
            if pattern.fits(other) and pattern.name in names_of[pattern.name]
        ]
        known = any(other in names for names in names_of.values())
        after += names_of.get(other) or ([other] if known or not failed else failed)
    return replace(declared, after=tuple(after))
