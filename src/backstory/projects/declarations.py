"""The declarations of a project file: the options, the tables that are read and written, and the order.

A pattern such as `erp.*` declares the tables of its database and of past runs. A table with its own
declaration belongs to no pattern. Every other table belongs to the first pattern that matches.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel

from backstory.documents import Document, DocumentKind, DocumentPart, nearest_name, read_document, validate
from backstory.doors.historize.door import open_model
from backstory.doors.historize.resolve import namespace_of
from backstory.doors.native.options import TABLE, ApplyRequest, SnapshotRequest
from backstory.doors.odf.lints import secrets_in_address
from backstory.doors.odf.manifest.dataset import read_manifests
from backstory.doors.odf.registry import is_file
from backstory.errors import BackstoryError, UsageError
from backstory.model.options import declared_options
from backstory.model.table import ODF, table_name
from backstory.projects.entries import (
    DatasetEntry,
    GroupEntry,
    Histories,
    ModelEntry,
    ScheduledEntry,
    TableEntry,
    merge_entries,
    pace_of,
)
from backstory.projects.files import CopyTimes, expand, fill_in, times_of_copies
from backstory.sources.databases.address import Database, is_database, parse_address
from backstory.sources.databases.copies import Keys

FILE: Final = "histories.yaml"
HISTORIES: Final = DocumentKind(
    "project file", absent_code="no-project", wrong_code="wrong-project", columns=True
)
Kind = Literal["snapshot", "apply", "model", "dataset"]
# The keys that make a table a feed, and the keys of an entry that are not options of the calls.
_OF_FEEDS: Final = ("sequence_by", "envelope")
_NO_OPTIONS: Final = {"source", "group", "file", "restart", "without", *ScheduledEntry.model_fields}
_OPTIONS_OF: Final = {
    "apply": {option.name for option in declared_options(ApplyRequest)},
    "snapshot": {option.name for option in declared_options(SnapshotRequest)} | {"restart"},
}
_FEED_ONLY: Final = _OPTIONS_OF["apply"] - _OPTIONS_OF["snapshot"]


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declaration: the name, the kind, and the options of the call that delivers it.

    `source` is the address or the file as written, with unfilled templates. `reads` and `writes` are tables.
    `expect` is the greatest age that the last delivery may have. `place` is the declaration's line in the
    file. If `restart` is true, the history restarts when the shape of the source changes. `pattern` is the
    name of the pattern to which the table belongs. `error` is the reason why the declaration cannot be
    delivered.
    """

    name: str
    kind: Kind
    source: str
    options: Mapping[str, Any]
    tags: frozenset[str] = frozenset()
    after: tuple[str, ...] = ()
    expect: timedelta | None = None
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    times: CopyTimes | None = None
    place: str = ""
    restart: bool = False
    pattern: str | None = None
    error: BackstoryError | None = None


@dataclass(frozen=True, slots=True)
class TablePattern:
    """An entry for all tables of a database whose names match, such as `erp.*`.

    `source` is the address as written. Tables that match a name in `without` do not belong to the pattern.
    These names may omit the schema. `declare` makes the declaration of a table from its name and the key in
    the database.
    """

    name: str
    source: str
    without: tuple[str, ...]
    place: str
    expect: timedelta | None
    declare: Callable[[str, Sequence[str]], Declaration]

    def fits(self, name: str) -> bool:
        """Whether a table with this name belongs to the pattern."""
        schema, _, table = name.partition(".")
        schemas, _, tables = self.name.partition(".")
        if not (fnmatchcase(schema, schemas) and fnmatchcase(table, tables)):
            return False
        return not any(fnmatchcase(name if "." in other else table, other) for other in self.without)


@dataclass(frozen=True, slots=True)
class Project:
    """The declarations of a file, in its order, and its patterns. File paths are relative to its folder."""

    path: Path
    declarations: tuple[Declaration, ...]
    patterns: tuple[TablePattern, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder of the file."""
        return self.path.parent


def read_project(path: str | Path | None = None, words: Sequence[str] = ()) -> Project:
    """The project in a file. Raises UsageError with the line and column of the first error.

    If the project has no patterns, also raises UsageError for words that select nothing.
    """
    file = Path(path or FILE).absolute()
    document = read_document(file, HISTORIES)
    project = project_of(file, document, validate(Histories, document))
    if not project.patterns:
        select(project, upstream_of(project), words)
    return project


def project_of(file: Path, document: Document, entries: Histories) -> Project:
    """The project, made from the document and the entries of its file."""
    for part in ("groups", "tables"):
        document.at(part).require_names()
    declarations = tuple(_declarations(entries, document, file.parent))
    patterns = tuple(
        _declare_pattern(name, entry, entries, document.at("tables", name))
        for name, entry in entries.tables.items()
        if is_pattern(name)
    )
    _refuse_doubles(declarations)
    project = Project(file, declarations, patterns)
    refuse_unknown(project)
    return project


def is_pattern(name: str) -> bool:
    """Whether a name is a pattern for several tables."""
    return any(mark in name for mark in "*?[")


def _declarations(entries: Histories, document: Document, folder: Path) -> Iterator[Declaration]:
    _refuse_secrets(entries.defaults, document.at("defaults"))
    for name, group in entries.groups.items():
        _refuse_secrets(group, document.at("groups", name))
    for name, table in entries.tables.items():
        if not is_pattern(name):
            yield _declare_table(name, table, entries, document.at("tables", name))
    for number, model in enumerate(entries.models):
        yield _declare_model(model, document.at("models", number), folder)
    for number, dataset in enumerate(entries.datasets):
        yield _declare_dataset(dataset, document.at("datasets", number), folder)


def _declare_table(name: str, entry: TableEntry, entries: Histories, part: DocumentPart) -> Declaration:
    """The declaration of a table, from its entry in the document."""
    with part.locate_errors():
        table = table_name(name)
    options_written = _options_of_table(entry, entries, part)
    kind = _kind_of_table(options_written)
    source = expand(options_written["source"], table)
    with (part.at("at") if "at" in entry.model_fields_set else part).locate_errors():
        times = times_of_copies(source, expand(options_written.get("at") or "", table), kind)
    if not times.fixed:
        options_written.pop("at", None)
    declared = Declaration(
        name,
        kind,
        source,
        reads=frozenset({source.removeprefix(TABLE)} if source.startswith(TABLE) else ()),
        writes=frozenset({name}),
        times=times,
        restart=bool(options_written.get("restart")),
        **_written_fields(options_written, part),
    )
    with part.locate_errors():
        _require_options(declared)
    return declared


def _kind_of_table(options_written: Mapping[str, Any]) -> Literal["apply", "snapshot"]:
    return "apply" if any(options_written.get(option) for option in _OF_FEEDS) else "snapshot"


def _options_of_table(entry: TableEntry, entries: Histories, part: DocumentPart) -> dict[str, Any]:
    """The keys of a table's entry, with the keys of its group and the defaults.

    Raises UsageError if the table has no source.
    """
    groups = entries.groups
    if entry.group is not None and entry.group not in groups:
        remedy = nearest_name(entry.group, list(groups)) if groups else "Declare it below groups."
        raise part.at("group").wrong(f"there is no group {entry.group}.", remedy)
    _refuse_secrets(entry, part)
    merged = merge_entries(entries.defaults, groups[entry.group] if entry.group else GroupEntry(), entry)
    if "source" not in merged:
        raise part.wrong("source is missing.", "Name a file, a table or a database.")
    if entry.without and not is_pattern(str(part.path[-1])):
        raise part.at("except").wrong("only a pattern of tables has exceptions.", "Leave it out.")
    # Defaults for other kinds of tables are left out; the table's own options must fit.
    mine = entry.model_fields_set | _OPTIONS_OF[_kind_of_table(merged)] | {"source"}
    mine |= ScheduledEntry.model_fields.keys()
    return {key: value for key, value in merged.items() if key in mine}


def _declare_pattern(name: str, entry: TableEntry, entries: Histories, part: DocumentPart) -> TablePattern:
    """The pattern of an entry. Raises UsageError if its tables cannot be listed."""
    options_written = _options_of_table(entry, entries, part)
    source = options_written["source"]
    if not is_database(source) or "{table}" not in source:
        raise part.wrong(
            "a pattern is for tables of a database, whose address has `{table}` in place of their names.",
            "Write the source as postgresql://user@host/database?table={schema}.{table}, or name one table.",
        )
    schemas, _, tables = name.partition(".")
    if not tables or (is_pattern(schemas) and "{schema}" not in source):
        raise part.wrong(
            "the schema of these tables is not clear.",
            "Write the pattern as schema.*, or `{schema}` in the source.",
        )

    def declare(table: str, key: Sequence[str]) -> Declaration:
        mine = entry.model_copy(update={"key": tuple(key)}) if key else entry
        return replace(_declare_table(table, mine, entries, part), pattern=name)

    declare(name, ())  # raises the errors of its options
    expect = _written_fields(options_written, part)["expect"]
    return TablePattern(name, source, entry.without, part.place, expect, declare)


def _require_options(declared: Declaration) -> None:
    """Raise UsageError for options that the call would refuse, before anything is started."""
    options = dict(declared.options)
    has_all_records = False
    if declared.kind == "apply":
        ApplyRequest(into=declared.name, **options)
    elif alien := sorted(options.keys() & _FEED_ONLY):
        raise UsageError(
            "bad-option",
            f"{alien[0]} is an option of feeds.",
            "Leave it out, or name the column that orders the changes with `sequence_by`.",
        )
    else:
        has_all_records = SnapshotRequest(into=declared.name, **options).has_all_records
    if declared.restart and not has_all_records:
        raise UsageError(
            "bad-option",
            "A history can only restart with a copy of all records.",
            "Write `restart: false` for a feed, and for a table with `scope` or `deletes: ignore`.",
        )


def _declare_model(entry: ModelEntry, part: DocumentPart, folder: Path) -> Declaration:
    _refuse_secrets(entry, part)
    with part.locate_errors():
        model, _ = open_model(folder / entry.file)
    sets = [dataset for dataset in model.target_datasets if entry.dataset in {None, dataset.name}]
    bases = {f"{namespace_of(model, dataset)}.{dataset.name}" for dataset in sets}
    inputs = {dataset.input.removeprefix(TABLE) for dataset in sets if dataset.input}
    writes = bases | {f"{base}_hist" for base in bases}
    return _declare_file(entry, "model", part, reads=inputs - bases, writes=writes)


def _declare_dataset(entry: DatasetEntry, part: DocumentPart, folder: Path) -> Declaration:
    names = [entry.file]
    if is_file(entry.file):
        with part.locate_errors():
            manifests = read_manifests(folder / entry.file)
        names = [snapshot.content.name for _, snapshot in manifests]
    return _declare_file(entry, "dataset", part, writes={f"{entry.namespace}.{name}" for name in names})


def _declare_file(
    entry: ModelEntry | DatasetEntry,
    kind: Kind,
    part: DocumentPart,
    *,
    writes: Iterable[str],
    reads: Iterable[str] = (),
) -> Declaration:
    fields = _written_fields(merge_entries(entry), part)
    reads, writes = frozenset(reads), frozenset(writes)
    return Declaration(entry.file, kind, entry.file, reads=reads, writes=writes, **fields)


def _written_fields(options_written: Mapping[str, Any], part: DocumentPart) -> dict[str, Any]:
    """The options for the call that delivers an entry, the fields that determine when, and the place."""
    expect = options_written.get("expect")
    return {
        "options": {name: value for name, value in options_written.items() if name not in _NO_OPTIONS},
        "tags": frozenset(options_written.get("tags", ())),
        "after": tuple(options_written.get("after", ())),
        "expect": None if expect is None else pace_of(expect),
        "place": part.place,
    }


def _refuse_secrets(entry: BaseModel, part: DocumentPart) -> None:
    """Raise UsageError if the file contains a password, which belongs in the environment."""
    for name in ("source", "url"):
        for what in secrets_in_address(getattr(entry, name, None) or ""):
            raise part.at(name).wrong(
                f"this contains {what} in clear text.",
                "Put it into an environment variable, and write ${NAME} in its place.",
                "literal-secret",
            )


def _refuse_doubles(declarations: Iterable[Declaration]) -> None:
    writers: dict[str, Declaration] = {}
    for declared in declarations:
        for table in sorted(declared.writes):
            if table in writers:
                other = writers[table].place
                why = f"{declared.place}: {table} is written by two declarations, see {other}."
                raise UsageError(HISTORIES.wrong_code, why, f"Fix the {HISTORIES.noun}.")
            writers[table] = declared


def refuse_unknown(project: Project) -> None:
    """Raise UsageError if `after` names no declaration, no pattern and no table that matches a pattern."""
    names = [declared.name for declared in project.declarations]
    names += [pattern.name for pattern in project.patterns]
    for declared in project.declarations:
        for other in declared.after:
            if other not in names and not any(pattern.fits(other) for pattern in project.patterns):
                why = f"{declared.place}: `after` names {other}, which is not declared."
                raise UsageError(HISTORIES.wrong_code, why, nearest_name(other, names))


TAG: Final = "tag:"


def tables_read(declared: Declaration) -> list[str]:
    """The tables that a declaration reads, also with the schema of datasets, which may be omitted."""
    return [name for table in sorted(declared.reads) for name in (table, f"{ODF}.{table}")]


def upstream_of(project: Project) -> Mapping[str, frozenset[str]]:
    """The upstream declarations of each declaration, by name.

    Raises UsageError if the declarations form a cycle.

    A declaration waits for the declarations in `after`, and for the writers of tables that it reads.
    """
    writers = {table: declared.name for declared in project.declarations for table in declared.writes}
    upstream = {}
    for declared in project.declarations:
        needed = {*declared.after, *(writers[table] for table in tables_read(declared) if table in writers)}
        upstream[declared.name] = frozenset(needed - {declared.name})
    try:
        TopologicalSorter(upstream).prepare()
    except CycleError as ring:
        names = " -> ".join(reversed(ring.args[1]))
        raise UsageError(
            "wrong-project",
            f"{project.path.name}: declarations wait for each other: {names}.",
            "Remove one `after` or one source.",
        ) from None
    return upstream


def select(
    project: Project, upstream: Mapping[str, frozenset[str]], wanted: Sequence[str]
) -> list[Declaration]:
    """The declarations that words select, in the file's order. If there are no words, all are selected.

    A word is a name, a pattern such as `crm.*`, or `tag:nightly`. A `+` before the word adds the upstream
    declarations, and a `+` after the word adds the downstream ones. Raises UsageError for a word that selects
    nothing.
    """
    if not wanted:
        return list(project.declarations)
    downstream = {name: frozenset(other for other, up in upstream.items() if name in up) for name in upstream}
    selected: set[str] = set()
    for word in wanted:
        bare = word.removeprefix("+").removesuffix("+")
        names = _names_of_word(project, bare)
        if word.startswith("+"):
            names |= _closure(names, upstream)
        if word.endswith("+"):
            names |= _closure(names, downstream)
        selected |= names
    return [declared for declared in project.declarations if declared.name in selected]


def _names_of_word(project: Project, word: str) -> set[str]:
    if word.startswith(TAG):
        tag = word.removeprefix(TAG)
        names = {declared.name for declared in project.declarations if tag in declared.tags}
        others = sorted({f"{TAG}{tag}" for declared in project.declarations for tag in declared.tags})
    else:
        others = [declared.name for declared in project.declarations]
        names = {name for name in others if name == word or fnmatchcase(name, word)}
    if not names:
        remedy = nearest_name(word, others) if others else "No declaration has a tag."
        raise UsageError("nothing-selected", f"{word} selects nothing of {project.path.name}.", remedy)
    return names


def _closure(names: set[str], neighbours: Mapping[str, frozenset[str]]) -> set[str]:
    """All names that can be reached from the given names."""
    reached, left = set[str](), list(names)
    while left:
        for name in neighbours[left.pop()] - reached:
            reached.add(name)
            left.append(name)
    return reached


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
    is None, a pattern's tables are taken from past runs, and the pattern itself is declared if it has none.
    A table that the database no longer has is declared as long as it `exists` in the warehouse. A pattern
    whose tables cannot be listed is declared too, with the error. Raises UsageError if `after` names a table
    that no pattern has.
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
    """The declarations of the tables that the database lists, and of the known tables.

    If listing fails, the known tables and the pattern are declared instead.
    """
    try:
        database = parse_pattern(fill_in(pattern.source, pattern.place))
        listed = names_in_warehouse(pattern, database, list_keys(database))
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


def parse_pattern(source: str) -> Database:
    """The database in a filled address, whose table contains `{table}` and perhaps `{schema}`."""
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
    except UsageError as error:
        return Declaration(name, "snapshot", pattern.source, {}, pattern=pattern.name, error=error)
    if "key" in declared.options or exists(name):
        return declared
    keyless = UsageError(
        "bad-option",
        f"The database declares no key for {name}.",
        f"Declare {name} with a `key`, or name it below `except` of {pattern.name}. With `key: row`, "
        f"{pattern.name} takes such tables without a key.",
    )
    return Declaration(name, "snapshot", pattern.source, {}, pattern=pattern.name, error=keyless)


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
