"""YAML documents: read with their lines and validated; errors name path and line."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from backstory.errors import UsageError
from backstory.yaml_trees import NotYaml, parse_trees, read_text

DocumentPath = Sequence[str | int]
Part = TypeVar("Part", bound=BaseModel)

# How a choice of a union is called in the paths of pydantic's errors; it is no step of the document.
TAG: Final = "kind:"
SHOWN: Final = 80

# What pydantic says of a wrong type, in words of the document.
TYPES: Final[Mapping[str, str]] = {
    "tuple_type": "this must be a list",
    "list_type": "this must be a list",
    "string_type": "this must be a text; put it in quotes",
    "dict_type": "this must be a mapping",
    "model_type": "this must be a mapping",
}


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """What a document is called, and the codes of its errors.

    A validator of a model may raise a PydanticCustomError whose context has `why`, `remedy` and `at`:
    a clause, a sentence, and the steps from the part to the key that is wrong. With `columns` a place is
    told to the letter.
    """

    noun: str
    absent_code: str
    wrong_code: str
    columns: bool = False


class Document:
    """A YAML text, and on which line each of its parts stands; with `start` 0 there are no lines to tell."""

    def __init__(self, name: str, tree: Any, sort: DocumentKind, start: int = 1) -> None:
        self.name = name
        self.tree = tree
        self.sort = sort
        self.start = start

    def wrong(self, path: DocumentPath, why: str, remedy: str = "", code: str = "") -> UsageError:
        """The error for a part of the document."""
        return UsageError(
            code or self.sort.wrong_code,
            f"{self.place(path)}: {why}",
            remedy or f"Fix the {self.sort.noun}.",
        )

    def place(self, path: DocumentPath) -> str:
        """Where a part stands: file, line and path."""
        line, column = self._mark(path)
        at = f"line {line}, {f'column {column}, ' if self.sort.columns else ''}" if line else ""
        return f"{self.name}, {at}{path_text(path)}"

    def line(self, path: DocumentPath) -> int:
        """The line of the part, or of the innermost part around it that is there."""
        return self._mark(path)[0]

    def _mark(self, path: DocumentPath) -> tuple[int, int]:
        """Line and column of the same, from 1."""
        node, mark = self.tree, (self.start, 1)
        for step in path:
            marks = getattr(node, "lc", None)
            if isinstance(node, Mapping) and step not in node:
                step = str(step).replace("_", "-")  # noqa: PLW2901 - as it may be spelled
            try:
                found = node[step]
                place = marks.item(step) if isinstance(node, Sequence) else marks.key(step)  # type: ignore[union-attr]
            except (KeyError, IndexError, TypeError, AttributeError):
                break
            node, mark = found, (place[0] + 1, place[1] + 1)
        return mark


def path_text(path: DocumentPath) -> str:
    """A path as people write it: `target_datasets[0].target_columns[2].datatype`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.lstrip(".") or "the document"


def read_document(path: Path, sort: DocumentKind) -> Document:
    """The one YAML (1.2) document of a file; UsageError if there is none or it is broken."""
    (tree,) = _parse_file(path, sort, several=False)
    return Document(path.name, tree, sort)


def read_documents(path: Path, sort: DocumentKind) -> list[Document]:
    """All YAML documents of a file that are not empty, each with its own lines; its name is the path."""
    trees = [tree for tree in _parse_file(path, sort, several=True) if tree is not None]
    return [Document(str(path), tree, sort, _first_line(tree)) for tree in trees]


def validate(part: type[Part], document: Document) -> Part:
    """The document as a part of the model; UsageError with the first thing that is wrong."""
    try:
        return part.model_validate(_plain_values(document.tree))
    except ValidationError as wrong:
        raise _validation_error(part, document, _first_error(document, wrong)) from None


def nearest_name(name: str, known: Sequence[str]) -> str:
    """The remedy for a name that nobody knows: the nearest one, in whatever case, or all."""
    lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), lower, 1)
    return f"Did you mean {lower[found[0]]}?" if found else f"Known are {', '.join(known)}."


def _parse_file(path: Path, sort: DocumentKind, *, several: bool) -> list[Any]:
    try:
        text = read_text(path)
    except NotYaml as broken:
        raise UsageError(sort.wrong_code, f"{path}: {broken}.", f"Make the {sort.noun} smaller.") from None
    except (OSError, ValueError):  # no such file, no text, or a name that no file has
        raise UsageError(
            sort.absent_code, f"The {sort.noun} {path} cannot be read.", "Name an existing YAML file."
        ) from None
    try:
        return parse_trees(text, several=several)
    except NotYaml as broken:
        place = f"{path if several else path.name}{f', line {broken.line}' if broken.line else ''}"
        raise UsageError(sort.wrong_code, f"{place}: {broken}.", "Fix the YAML.") from None


def _first_line(tree: Any) -> int:
    marks = getattr(tree, "lc", None)
    return marks.line + 1 if marks else 1


def _first_error(document: Document, wrong: ValidationError) -> Mapping[str, Any]:
    """The error to tell, with the path of the document: misspelled keys before missing ones."""
    found = [
        {**error, "loc": _error_path(document.tree, error)} for error in _innermost_errors(wrong.errors())
    ]
    return min(found, key=lambda error: (error["type"] == "missing", document.line(error["loc"])))


def _innermost_errors(errors: Sequence[Any]) -> list[Any]:
    """The errors without those of parts that are wrong only because something in them is."""
    paths = [error["loc"] for error in errors]

    def holds_another(path: DocumentPath) -> bool:
        return any(len(other) > len(path) and other[: len(path)] == path for other in paths)

    return [error for error in errors if not holds_another(error["loc"])]


def _error_path(tree: Any, error: Mapping[str, Any]) -> tuple[str | int, ...]:
    """The path of an error without the tags of unions, with the key that the error names itself."""
    found: list[str | int] = []
    node = tree
    for step in error["loc"]:
        try:
            node = node[step]
        except (KeyError, IndexError, TypeError):
            if isinstance(step, str) and step.startswith(TAG):
                continue
            node = None
        found.append(step)
    return (*found, *error.get("ctx", {}).get("at", ()))


def _validation_error(part: type[BaseModel], document: Document, error: Mapping[str, Any]) -> UsageError:
    """The error of a document for one of Pydantic's, with its path and line."""
    path, kind, context = error["loc"], error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        names = _names_at(part, document.tree, path[:-1])
        return document.wrong(path, "there is no such key.", nearest_name(str(path[-1]), names))
    if kind == "missing":
        return document.wrong(path, "this key is missing.", f"Add {path[-1]}.")
    if kind in {"literal_error", "enum"}:
        return document.wrong(path, f"{_excerpt(error['input'])} is not one of {context['expected']}.")
    if kind == "string_pattern_mismatch":
        return document.wrong(path, f"{_excerpt(error['input'])} does not match {context['pattern']}.")
    by_pydantic = f"{error['msg'][:1].lower()}{error['msg'][1:]}".rstrip(".")
    why = context.get("why") or TYPES.get(kind, by_pydantic)
    return document.wrong(path, f"{why}.", context.get("remedy", ""))


def _excerpt(value: Any) -> str:
    """A value as a message has it: of a long one, its beginning."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _names_at(part: type[BaseModel], tree: Any, path: DocumentPath) -> list[str]:
    """The keys that a part of the document may have."""
    schema = part.model_json_schema()
    node: Mapping[str, Any] = schema
    for step in path:
        node = _follow_references(schema, node, tree)
        known = node.get("properties", {})
        others = node.get("additionalProperties") or {}
        node = node.get("items", {}) if isinstance(step, int) else known.get(step, others)
        tree = tree[step]
    return sorted(_follow_references(schema, node, tree).get("properties", {}))


def _follow_references(schema: Mapping[str, Any], node: Mapping[str, Any], tree: Any) -> Mapping[str, Any]:
    """The node that references lead to; of alternatives, the one of the document's own kind, or the last."""
    options = list(_options(schema, node))
    kind = str(tree.get("kind", "")).lower() if isinstance(tree, Mapping) else ""
    same = [each for each in options if kind in _kinds(each)]
    return (same or options or [{}])[-1]


def _options(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a node may be: itself, or what its references and alternatives lead to."""
    if "$ref" in node:
        yield from _options(schema, schema["$defs"][node["$ref"].rsplit("/", 1)[1]])
    elif "anyOf" in node or "oneOf" in node:
        for option in (*node.get("anyOf", ()), *node.get("oneOf", ())):
            yield from _options(schema, option)
    elif {"properties", "items", "additionalProperties"} & node.keys():
        yield node


def _kinds(node: Mapping[str, Any]) -> set[str]:
    """The kinds that a node may have, in lower case."""
    return {str(each).lower() for each in node.get("properties", {}).get("kind", {}).get("enum", ())}


def _plain_values(node: Any) -> Any:
    """The tree in Python's own types, which pydantic knows."""
    if isinstance(node, Mapping):
        # The option `null` is a name, though YAML reads the word as no value.
        return {"null" if name is None else str(name): _plain_values(value) for name, value in node.items()}
    if isinstance(node, Sequence) and not isinstance(node, str):
        return [_plain_values(value) for value in node]
    if isinstance(node, bool | int | float | str) or node is None:
        for kind in (bool, int, float, str):
            if isinstance(node, kind):
                return kind(node)
        return None
    return str(node)  # a date that YAML reads by itself
