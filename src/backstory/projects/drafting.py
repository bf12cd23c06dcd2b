"""Draft a project file for a folder or a database, or add entries for new tables to an existing file.

The user must fill in unknown keys.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from backstory.documents import Document, NotYaml, parse_trees, read_document, validate
from backstory.doors.native.options import names_files
from backstory.doors.native.refusals import names_in_first_file
from backstory.errors import BackstoryError, UsageError
from backstory.formats.file_options import AS_EXPECTED
from backstory.formats.source_files import source_files
from backstory.model.table import table_name
from backstory.model.values import as_yaml
from backstory.projects.declarations import (
    HISTORIES,
    Project,
    TablePattern,
    names_in_warehouse,
    parse_pattern,
    project_of,
)
from backstory.projects.entries import Histories
from backstory.projects.files import copies, expand
from backstory.sources import templates
from backstory.sources.databases.address import (
    Database,
    escape_name,
    is_database,
    parse_address,
    parse_server,
)
from backstory.sources.databases.copies import Keys, declared_keys

ENDINGS: Final = re.compile(r"\.(csv|parquet|jsonl|ndjson|json)(\.gz|\.zip)?$", re.IGNORECASE)
# Times in the names of files, the longest first.
_TIMES: Final = (
    (re.compile(r"\d{4}-\d{2}-\d{2}T\d{6}"), "%Y-%m-%dT%H%M%S"),
    (re.compile(r"\d{4}-\d{2}-\d{2}"), "%Y-%m-%d"),
    (re.compile(r"\d{8}T\d{6}"), "%Y%m%dT%H%M%S"),
    (re.compile(r"(?<!\d)(?:19|20)\d{6}(?!\d)"), "%Y%m%d"),
)
_DEEPEST: Final = 3
_SHOWN: Final = 8
_PASSWORD: Final = "DATABASE_PASSWORD"  # noqa: S105 - the name of a variable
_HEAD: Final = """\
# All tables and their sources. `backstory run` delivers them.
# The source declares some of the keys; write the others. All options: docs/how-to/every-night.md
format: histories/1
"""
_GROUP: Final = "database"


@dataclass(frozen=True, slots=True)
class _Draft:
    """A table of the draft: the source, and either the key or the columns to choose a key from.

    If a group has the source, `group` is its name. `newest` is the newest file of a source of files. `query`
    reads a table that no address can name.
    """

    table: str
    source: str
    key: Sequence[str] = ()
    columns: Sequence[str] = ()
    group: str | None = None
    newest: Path | None = None
    query: str = ""


def draft_project(
    source: str, keys_of: Callable[[Database], Keys] = declared_keys, home: Path | None = None
) -> tuple[str, list[str]]:
    """The contents of a project file for a folder or a database, and the names of its tables.

    `keys_of` lists the tables of a database. Paths are relative to `home`, the folder of the project file. By
    default, `home` is the source folder. Raises UsageError if there are no files or tables, and errors from
    reading the database's catalog.
    """
    if is_database(source):
        drafts = _with_own_names(_draft_database(source, keys_of))
        template, group = _draft_group(source, drafts)
        drafts = [replace(draft, group=_GROUP if _has_source(draft, template) else None) for draft in drafts]
    else:
        drafts, group = _with_own_names(_draft_folder(Path(source), home or Path(source))), ""
    return f"{_HEAD}{group}tables:\n{''.join(map(_lines, drafts))}", [draft.table for draft in drafts]


def _with_own_names(drafts: Iterable[_Draft]) -> list[_Draft]:
    """The drafts, with a number after a table's name that an earlier draft has."""
    by_table: dict[str, _Draft] = {}
    for draft in drafts:
        table, number = draft.table, 1
        while table in by_table:
            number += 1
            table = f"{draft.table}_{number}"
        by_table[table] = replace(draft, table=table)
    return [*by_table.values()]


def _draft_group(source: str, drafts: Iterable[_Draft]) -> tuple[str, str]:
    """The source of a group for the tables of a database, and the lines of this group."""
    url, has_password = _without_password(source)
    has_schemas = all(_identity(draft.source)[1] in {draft.table, None} for draft in drafts)
    template = _with_table(url, "{schema}.{table}" if has_schemas else "{table}")
    note = f"  # the password comes from the environment variable {_PASSWORD}" if has_password else ""
    return template, f"groups:\n  {_GROUP}:{note}\n    source: {as_yaml(template)}\n"


def write_draft(file: Path, source: str, keys_of: Callable[[Database], Keys]) -> list[str]:
    """Write a new project file, or add entries to an existing one. Returns the names of the new tables.

    Raises the errors of `draft_project` and `extend_project`.
    """
    if file.exists():
        text, names = extend_project(file, source, keys_of)
    else:
        text, names = draft_project(source, keys_of, file.parent)
    if names:
        with file.open("w", encoding="utf-8", newline="") as opened:
            opened.write(text)
    return names


def extend_project(
    file: Path, source: str, keys_of: Callable[[Database], Keys] = declared_keys
) -> tuple[str, list[str]]:
    """The contents of an existing project file with entries for new tables, and the names of these tables.

    A table is new if no entry has its name, its database table or its files. The rest of the file is
    unchanged. Raises UsageError for a wrong file, or if its entries do not each have their own lines. Raises
    the errors of `draft_project`.
    """
    document = read_document(file, HISTORIES)
    entries = validate(Histories, document)
    project = project_of(file.absolute(), document, entries)
    if is_database(source):
        sources = [declared.source for declared in project.declarations]
        declared = {_identity(text) for text in sources if _has_table(text)}
        drafts = [
            replace(draft, group=_group_of(draft, entries))
            for draft in _draft_database(source, keys_of)
            if _identity(draft.source) not in declared and not _belongs_to_pattern(draft, project)
        ]
    else:
        files = _files_of(project)
        drafts = [draft for draft in _draft_folder(Path(source), file.parent) if draft.newest not in files]
    drafts = _with_own_names(draft for draft in drafts if draft.table not in entries.tables)
    with file.open(encoding="utf-8", newline="") as opened:
        lines = opened.readlines()
    extended = _with_entries(lines, document, entries, drafts) if drafts else lines
    return "".join(extended), [draft.table for draft in drafts]


def _draft_database(source: str, keys_of: Callable[[Database], Keys]) -> list[_Draft]:
    """A draft for each table of a database."""
    known = parse_server(source)
    keys = keys_of(known)
    if not keys:
        raise UsageError("nothing-there", f"There are no tables in {known.name}.", "Name another database.")
    url, _ = _without_password(source)
    schema = _plain_name(Path(urlsplit(known.url).path).stem) or "source"  # of tables that have none
    drafts = []
    for name, key in keys.items():
        if name.startswith('"'):  # quoted, because no address can name it
            *parts, table = name.replace('"', "").split(".")
            query = f"SELECT * FROM {name}"  # noqa: S608 - the name is quoted
            drafts.append(_Draft(f"{'_'.join(parts)}.{table}", url, key, query=query))
        else:
            table = name if all(name.partition(".")) else f"{schema}.{name}"
            drafts.append(_Draft(table, _with_table(url, escape_name(name)), key))
    return drafts


def _with_table(url: str, table: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}table={table}"


def _without_password(url: str) -> tuple[str, bool]:
    password = urlsplit(url).password
    return (url.replace(f":{password}@", f":${{{_PASSWORD}}}@", 1), True) if password else (url, False)


def _draft_folder(folder: Path, home: Path) -> list[_Draft]:
    """A draft for each file, or one draft for all files whose names differ only in a time."""
    groups: dict[str, Path] = {}
    for path in sorted(_files(folder)):
        groups[_pattern(str(path.relative_to(folder)))] = path
    if not groups:
        raise UsageError(
            "nothing-there",
            f"There are no CSV, Parquet or JSON files in {folder.absolute()}.",
            "Name another folder, or a database: `backstory init postgresql://user@host/database`.",
        )
    below = folder.absolute()
    if below.is_relative_to(home.absolute()):
        below = below.relative_to(home.absolute())
    return [_draft_file(pattern, newest, folder, below) for pattern, newest in groups.items()]


def _draft_file(pattern: str, newest: Path, folder: Path, below: Path) -> _Draft:
    stem = _plain_name(ENDINGS.sub("", re.sub(r"\{at:[^}]*\}", "", Path(pattern).name)))
    schema = _plain_name(Path(pattern).parent.name) or _plain_name(folder.absolute().name) or "files"
    table = f"{schema}.{stem or 'rows'}"
    return _Draft(table, str(below / pattern), columns=_columns(newest), newest=newest.absolute())


def _files(folder: Path, depth: int = 0) -> Iterator[Path]:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name[0] in "._" or (path / "catalog.db").exists():
            continue
        if path.is_dir() and depth < _DEEPEST:
            yield from _files(path, depth + 1)
        elif path.is_file() and ENDINGS.search(path.name):
            yield path


def _pattern(name: str) -> str:
    for form, directives in _TIMES:
        if form.search(name):
            return form.sub(f"{{at:{directives}}}", name, count=1)
    return name


def _columns(path: Path) -> Sequence[str]:
    try:
        return names_in_first_file(source_files(str(path)), AS_EXPECTED)
    except (BackstoryError, OSError):
        return ()  # the run reports the error of the file


def _plain_name(text: str) -> str:
    """A lowercase name that needs no quotes."""
    return re.sub(r"\W+", "_", text).strip("_").lower()


def _lines(draft: _Draft, before: str = "  ") -> str:
    """The lines of an entry, with this indentation."""
    lines = [f"group: {as_yaml(draft.group)}" if draft.group else f"source: {as_yaml(draft.source)}"]
    if draft.query:
        lines.append(f"query: {as_yaml(draft.query)}")
    if draft.key:
        lines.append(f"key: {as_yaml(list(draft.key))}")
    else:
        shown = [*map(as_yaml, draft.columns[:_SHOWN]), *["..."][: len(draft.columns) > _SHOWN]]
        hint = f": {', '.join(shown)}" if shown else ", or row if there are none"
        lines.append(f"key:          # write the columns that identify a record{hint}")
    return "".join(
        f"{before}{line}\n" for line in (f"{as_yaml(draft.table)}:", *(f"  {line}" for line in lines))
    )


def _fill(source: str) -> str:
    """An address with its templates filled. If a variable is missing, all variables become placeholders."""
    try:
        return templates.fill(source, os.environ)
    except UsageError:
        return templates.with_variables_as("x", source)


def _identity(source: str) -> tuple[str, str | None]:
    """The database in an address, without user and password, and the table, or None if it names none."""
    database = (parse_address if _has_table(source) else parse_server)(_fill(source))
    return re.sub("^postgres:", "postgresql:", database.name), database.table


def _has_table(source: str) -> bool:
    return is_database(source) and "table=" in source


def _belongs_to_pattern(draft: _Draft, project: Project) -> bool:
    """Whether a pattern includes or excludes the table."""
    server, table = _identity(draft.source)

    def has(pattern: TablePattern) -> bool:
        every, database = replace(pattern, without=()), parse_pattern(_fill(pattern.source))
        names = names_in_warehouse(pattern, database, {table or "": ()})
        return _identity(pattern.source)[0] == server and any(map(every.fits, names))

    return any(map(has, project.patterns))


def _group_of(draft: _Draft, entries: Histories) -> str | None:
    """The group whose source, expanded for the draft's table, equals the draft's source, or None."""
    groups = entries.groups.items()
    return next((name for name, group in groups if _has_source(draft, group.source or "")), None)


def _has_source(draft: _Draft, template: str) -> bool:
    """Whether the source of a group, expanded for the draft's table, equals the draft's source."""
    source = expand(template, table_name(draft.table))
    return _has_table(source) and _identity(source) == _identity(draft.source)


def _files_of(project: Project) -> set[Path]:
    """The files that the project reads."""
    files = set[Path]()
    for declared in project.declarations:
        if declared.times is not None and names_files(declared.source):
            try:
                files.update(
                    copy.path.absolute() for copy in copies(declared.source, declared.times, project.folder)
                )
            except (BackstoryError, OSError):
                continue  # the run reports the error of the files
    return files


def _with_entries(
    lines: list[str], document: Document, entries: Histories, drafts: Sequence[_Draft]
) -> list[str]:
    """The lines of a file, with the entries of the drafts after its last table."""
    tree, end = document.tree, "\r\n" if lines[0].endswith("\r\n") else "\n"
    lines = [*lines[:-1], lines[-1].rstrip("\r\n") + end]
    before = " " * tree["tables"].lc.key(next(iter(tree["tables"])))[1] if entries.tables else "  "
    added = "".join(_lines(draft, before) for draft in drafts).replace("\n", end)
    place = _end_of_tables(tree, lines)
    head = [] if "tables" in tree else [f"tables:{end}"]
    extended = [*lines[:place], *head, added, *lines[place:]]
    _require_same("".join(extended), document.name, entries, drafts)
    return extended


def _end_of_tables(tree: Mapping[str, object], lines: Sequence[str]) -> int:
    """The number of the line after the last table, before the next key and any comments above that key."""
    marks = tree.lc  # type: ignore[attr-defined]
    starts = sorted(marks.key(name)[0] for name in tree)
    begin = marks.key("tables")[0] if "tables" in tree else len(lines)
    place = next((start for start in starts if start > begin), len(lines))
    while place and (not lines[place - 1].strip() or lines[place - 1][0] in "#."):
        place -= 1
    return place


def _require_same(text: str, name: str, entries: Histories, drafts: Sequence[_Draft]) -> None:
    """Raise UsageError unless the file contains the former entries and the drafts' entries."""
    names = {draft.table for draft in drafts}
    try:
        extended = validate(Histories, Document(name, parse_trees(text, several=False)[0], HISTORIES))
        former = {table: entry for table, entry in extended.tables.items() if table not in names}
        if extended.model_copy(update={"tables": former}) == entries and names <= extended.tables.keys():
            return
    except (NotYaml, UsageError):
        pass  # the entries are written in another form
    raise UsageError(
        HISTORIES.wrong_code,
        f"{name}: no entry can be added below `tables`, because its tables are not below each other.",
        f"Write each table on lines of its own, or add {', '.join(sorted(names))} yourself.",
    )
