"""Which declarations wait for which others, and which of them are selected."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from typing import Final

from backstory.documents import nearest_name
from backstory.errors import UsageError
from backstory.model.table import ODF
from backstory.projects.declarations import Declaration, Project

TAG: Final = "tag:"


def upstream_of(project: Project) -> Mapping[str, frozenset[str]]:
    """The declarations that each one waits for, by name; UsageError where they wait in a ring.

    Those that `after` names, and those that write what it reads: a dataset's table may be named alone.
    """
    writers = {table: each.name for each in project.declarations for table in each.writes}
    upstream = {
        each.name: frozenset({*each.after, *_writers(each, writers)} - {each.name})
        for each in project.declarations
    }
    try:
        TopologicalSorter(upstream).prepare()
    except CycleError as ring:
        names = " -> ".join(reversed(ring.args[1]))
        raise UsageError(
            "wrong-project",
            f"{project.path.name}: declarations wait for each other: {names}.",
            "Take one `after` or source away.",
        ) from None
    return upstream


def _writers(declared: Declaration, writers: Mapping[str, str]) -> Iterable[str]:
    meant = (name for table in declared.reads for name in (table, f"{ODF}.{table}"))
    return {writers[name] for name in meant if name in writers}


def select(
    project: Project, upstream: Mapping[str, frozenset[str]], wanted: Sequence[str]
) -> list[Declaration]:
    """The declarations that words select, in the file's order; all where there are no words.

    A word is a name, a pattern such as `crm.*`, or `tag:nightly`; a `+` before it adds what it waits for,
    one behind it what waits for it. UsageError for a word that selects nothing.
    """
    if not wanted:
        return list(project.declarations)
    downstream = {name: frozenset(each for each, up in upstream.items() if name in up) for name in upstream}
    chosen: set[str] = set()
    for word in wanted:
        bare = word.removeprefix("+").removesuffix("+")
        names = _named(project, bare)
        if word.startswith("+"):
            names |= _closure(names, upstream)
        if word.endswith("+"):
            names |= _closure(names, downstream)
        chosen |= names
    return [each for each in project.declarations if each.name in chosen]


def _named(project: Project, word: str) -> set[str]:
    if word.startswith(TAG):
        tag = word.removeprefix(TAG)
        names = {each.name for each in project.declarations if tag in each.tags}
        others = sorted({f"{TAG}{tag}" for each in project.declarations for tag in each.tags})
    else:
        others = [each.name for each in project.declarations]
        names = {each for each in others if each == word or fnmatchcase(each, word)}
    if not names:
        remedy = nearest_name(word, others) if others else "No declaration has a tag."
        raise UsageError("nothing-selected", f"{word} selects nothing of {project.path.name}.", remedy)
    return names


def _closure(names: set[str], neighbours: Mapping[str, frozenset[str]]) -> set[str]:
    """All that can be reached from the names."""
    reached, left = set[str](), list(names)
    while left:
        for each in neighbours[left.pop()] - reached:
            reached.add(each)
            left.append(each)
    return reached
