"""Draft a first project file for a folder or a database; unknown keys are left for a person to write."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from backstory.doors.native.file_checks import names_in_first_file
from backstory.doors.native.options import SnapshotRequest
from backstory.errors import BackstoryError, UsageError
from backstory.formats.source_files import source_files
from backstory.model.values import as_yaml
from backstory.sources.databases.address import Database, is_database, parse_server
from backstory.sources.databases.keys import Keys, declared_keys

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


@dataclass(frozen=True, slots=True)
class _Draft:
    """A table of the draft: its source, unless its group has it, and its key, or columns to choose from."""

    table: str
    source: str
    key: Sequence[str] = ()
    columns: Sequence[str] = ()


def draft_project(source: str, keys_of: Callable[[Database], Keys] = declared_keys) -> str:
    """The text of a project file for a folder or a database; `keys_of` lists the tables of a database.

    Raises UsageError if there are no files or tables, and the errors of reading the database's catalog.
    """
    if is_database(source):
        return _draft_database(source, keys_of)
    folder = Path(source)
    drafts = list(_draft_folder(folder))
    if not drafts:
        raise UsageError(
            "nothing-there",
            f"There are no CSV, Parquet or JSON files in {folder.absolute()}.",
            "Name another folder, or a database: `backstory init postgresql://user@host/database`.",
        )
    return f"{_HEAD}tables:\n{''.join(map(_lines, drafts))}"


def _draft_database(source: str, keys_of: Callable[[Database], Keys]) -> str:
    known = parse_server(source)
    keys = keys_of(known)
    if not keys:
        raise UsageError("nothing-there", f"There are no tables in {known.name}.", "Name another database.")
    url, password = _without_password(source)
    whole = "{schema}.{table}" if all("." in name for name in keys) else "{table}"
    note = f"  # the password comes from the environment variable {_PASSWORD}" if password else ""
    group = f"groups:\n  database:{note}\n    source: '{url}{'&' if '?' in url else '?'}table={whole}'\n"
    drafts = (_Draft(_table_name(name, known), "", key) for name, key in keys.items())
    return f"{_HEAD}{group}tables:\n{''.join(map(_lines, drafts))}"


def _without_password(url: str) -> tuple[str, bool]:
    password = urlsplit(url).password
    return (url.replace(f":{password}@", f":${{{_PASSWORD}}}@", 1), True) if password else (url, False)


def _table_name(name: str, database: Database) -> str:
    """The name in the warehouse for a source's table, which may have no schema."""
    if "." in name:
        return name
    stem = Path(urlsplit(database.url).path).stem
    return f"{_plain_name(stem) or 'source'}.{name}"


def _draft_folder(folder: Path) -> Iterator[_Draft]:
    """A table for each file, or for all files whose names differ only in a time."""
    groups: dict[str, Path] = {}
    for path in sorted(_files(folder)):
        groups[_pattern(str(path.relative_to(folder)))] = path
    for pattern, newest in groups.items():
        stem = _plain_name(ENDINGS.sub("", re.sub(r"\{at:[^}]*\}", "", Path(pattern).name)))
        schema = _plain_name(Path(pattern).parent.name) or _plain_name(folder.absolute().name) or "files"
        yield _Draft(f"{schema}.{stem or 'rows'}", pattern, columns=_columns(newest))


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
        return names_in_first_file(source_files(str(path)), SnapshotRequest())
    except (BackstoryError, OSError):
        return ()  # the run reports the error of the file


def _plain_name(text: str) -> str:
    """A lower-case name that needs no quoting."""
    return re.sub(r"\W+", "_", text).strip("_").lower()


def _lines(draft: _Draft) -> str:
    source = f"'{draft.source}'" if re.search(r"[:{}&*?#]", draft.source) else draft.source
    lines = [f"  {as_yaml(draft.table)}:", f"    source: {source}" if source else "    group: database"]
    if draft.key:
        lines.append(f"    key: {as_yaml(list(draft.key))}")
    else:
        shown = ", ".join(draft.columns[:_SHOWN]) + (", ..." if len(draft.columns) > _SHOWN else "")
        hint = f": {shown}" if shown else ""
        lines.append(f"    key:          # write the columns that identify a record{hint}")
    return "\n".join(lines) + "\n"
