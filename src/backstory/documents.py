"""YAML documents, read within limits and validated by pydantic. Errors name the file, path and line.

A few lines of YAML can expand to a billion parts (aliases of aliases) or exhaust the stack. A number can take
minutes to parse. The limits are far above any document that people write. A document beyond them is refused
before it is built.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.constructor import RoundTripConstructor
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.events import AliasEvent

from backstory.errors import UsageError

LARGEST: Final = 16 << 20
DEEPEST: Final = 100
# The parts that all aliases of a document may repeat together.
MOST_REPEATED: Final = 100_000
MOST_DIGITS: Final = 100
TAG_SHOWN: Final = 40
CORE: Final = "tag:yaml.org,2002:"
NUMBERS: Final = {f"{CORE}{name}" for name in ("int", "float")}
# The allowed tags. Other tags would create a program's objects, or sets and bytes, which no document needs.
KNOWN: Final = NUMBERS | {
    f"{CORE}{name}" for name in ("null", "bool", "str", "seq", "map", "timestamp", "merge", "value")
}


class NotYaml(ValueError):
    """An error in a YAML text: a clause, and its line, or 0 if the line is unknown."""

    def __init__(self, why: str, line: int = 0) -> None:
        super().__init__(why)
        self.line = line


def read_text(path: Path) -> str:
    """The contents of a UTF-8 file, with every line break as LF.

    Raises OSError, UnicodeDecodeError, and NotYaml for a file that is too large.
    """
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise NotYaml(f"the file is larger than {LARGEST >> 20} MiB")
    return content.decode().replace("\r\n", "\n").replace("\r", "\n")


def parse_trees(text: str, *, several: bool) -> list[Any]:
    """The documents in a YAML text as trees with line numbers.

    Raises NotYaml for invalid YAML, and for a second document unless `several` is set.
    """
    yaml = YAML(typ="rt")
    yaml.Composer, yaml.Constructor = _BoundedComposer, _LineConstructor
    try:
        return list(yaml.load_all(text)) if several else [yaml.load(text)]
    except MarkedYAMLError as broken:
        raise NotYaml(
            str(broken.problem), broken.problem_mark.line + 1 if broken.problem_mark else 1
        ) from None
    except YAMLError as broken:
        raise NotYaml(str(broken)) from None


class _BoundedComposer(Composer):
    """A composer of nodes within the limits. An alias counts as all the parts that it repeats."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.parts = self.repeated = 0
        self.sizes: dict[int, int] = {}

    def compose_document(self) -> Any:
        """The next document. Resets the counts."""
        self.parts, self.repeated, self.sizes = 0, 0, {}
        return super().compose_document()

    def compose_node(self, parent: Any, index: Any) -> Any:
        """The next node. For an alias, this is the node that it refers to."""
        event = self.parser.peek_event()
        if isinstance(event, AliasEvent):
            node = super().compose_node(parent, index)
            self._repeat(node, event)
            return node
        if self.depth >= DEEPEST:
            raise _marked_error(f"this is nested more than {DEEPEST} levels deep", event.start_mark)
        before = self.parts
        self.parts += 1
        node = super().compose_node(parent, index)
        self.sizes[id(node)] = self.parts - before
        if node.tag not in KNOWN:
            raise _marked_error(
                f"the tag {str(node.tag).removeprefix(CORE)[:TAG_SHOWN]} is not allowed here",
                event.start_mark,
            )
        if node.tag in NUMBERS and len(node.value) > MOST_DIGITS:
            raise _marked_error(f"this number has more than {MOST_DIGITS} digits", event.start_mark)
        return node

    def _repeat(self, node: Any, event: Any) -> None:
        size = self.sizes.get(id(node))
        if size is None:
            raise _marked_error(
                "this alias is inside what it names: the document contains itself", event.start_mark
            )
        self.parts += size
        self.repeated += size
        if self.repeated > MOST_REPEATED:
            raise _marked_error(f"aliases repeat more than {MOST_REPEATED:,} parts", event.start_mark)


class _LineConstructor(RoundTripConstructor):
    """A constructor of values. An impossible value, such as June 31, is an error with its line."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - as it is called
        """The value of a node. Raises MarkedYAMLError if the value is impossible."""
        try:
            return super().construct_object(node, deep=deep)
        except ValueError as wrong:
            raise _marked_error(f"this is not a value ({wrong})", node.start_mark) from None


def _marked_error(why: str, mark: StringMark) -> MarkedYAMLError:
    return MarkedYAMLError(problem=why, problem_mark=mark)


DocumentPath = Sequence[str | int]
Part = TypeVar("Part", bound=BaseModel)

# The tag of a union's choice in the paths of pydantic's errors. It is not a step of the document.
TAG: Final = "kind:"
SHOWN: Final = 80

# Pydantic's errors for wrong types, in words of the document.
TYPES: Final[Mapping[str, str]] = {
    "tuple_type": "this must be a list",
    "list_type": "this must be a list",
    "string_type": "this must be a string; put it in quotes",
    "dict_type": "this must be a mapping",
    "model_type": "this must be a mapping",
}


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """The noun for a kind of document, and its error codes.

    `absent_code` is for a file that cannot be read, and `wrong_code` is for wrong content. A validator of a
    model may raise a PydanticCustomError. The error's context contains a clause `why`, a sentence `remedy`,
    and `at`, the steps from the part to the wrong key. If `columns` is true, errors include the column.
    """

    noun: str
    absent_code: str
    wrong_code: str
    columns: bool = False


class Document:
    """A YAML document and the lines of its parts. `start` is its first line, or 0 if lines are unknown."""

    def __init__(self, name: str, tree: Any, sort: DocumentKind, start: int = 1) -> None:
        self.name = name
        self.tree = tree
        self.sort = sort
        self.start = start

    def at(self, *path: str | int) -> "DocumentPart":
        """The part at a path."""
        return DocumentPart(self, path)

    def place(self, path: DocumentPath) -> str:
        """The place of a part: file, line and path."""
        line, column = self._mark(path)
        at = f"line {line}, {f'column {column}, ' if self.sort.columns else ''}" if line else ""
        return f"{self.name}, {at}{path_text(path)}"

    def line(self, path: DocumentPath) -> int:
        """The line of the part, or of the innermost existing part around it."""
        return self._mark(path)[0]

    def _mark(self, path: DocumentPath) -> tuple[int, int]:
        """The line and column, counted from 1, of the part or of the innermost existing part around it."""
        node, mark = self.tree, (self.start, 1)
        for step in path:
            marks = getattr(node, "lc", None)
            if isinstance(node, Mapping) and step not in node:
                step = str(step).replace("_", "-")  # noqa: PLW2901 - as it may be spelled
            try:
                child = node[step]
                place = marks.item(step) if isinstance(node, Sequence) else marks.key(step)  # type: ignore[union-attr]
            except (KeyError, IndexError, TypeError, AttributeError):
                break
            node, mark = child, (place[0] + 1, place[1] + 1)
        return mark


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A part of a document, to which errors refer."""

    document: Document
    path: tuple[str | int, ...]

    def at(self, *path: str | int) -> "DocumentPart":
        """A part of this part."""
        return DocumentPart(self.document, (*self.path, *path))

    @property
    def place(self) -> str:
        """The place of this part: file, line and path."""
        return self.document.place(self.path)

    @contextmanager
    def locate_errors(self) -> Iterator[None]:
        """Add the place of this part to each UsageError within the block."""
        try:
            yield
        except UsageError as wrong:
            raise self.wrong(wrong.message, wrong.remedy, wrong.code) from None

    def require_names(self) -> None:
        """Raise UsageError if a key of this part is not a string, because YAML reads 2026.10 as 2026.1."""
        names = self.document.tree
        for step in self.path:
            names = names.get(step) if isinstance(names, Mapping) else None
        for name in names if isinstance(names, Mapping) else ():
            if not isinstance(name, str):
                text = "null" if name is None else str(name)
                why = f"YAML reads this name as {text}, which is not a string."
                raise self.at(name).wrong(why, "Put the name in quotes.")

    def wrong(self, why: str, remedy: str = "", code: str = "") -> UsageError:
        """The error for this part."""
        sort = self.document.sort
        return UsageError(code or sort.wrong_code, f"{self.place}: {why}", remedy or f"Fix the {sort.noun}.")


def path_text(path: DocumentPath) -> str:
    """A path in its usual form, such as `target_datasets[0].target_columns[2].datatype`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.lstrip(".") or "the document"


def read_document(path: Path, sort: DocumentKind) -> Document:
    """The single YAML 1.2 document in a file. Raises UsageError if it cannot be read."""
    (tree,) = _parse_file(path, sort, several=False)
    return Document(path.name, tree, sort)


def read_documents(path: Path, sort: DocumentKind) -> list[Document]:
    """All nonempty YAML documents in a file. Lines are counted from the beginning of the file."""
    trees = [tree for tree in _parse_file(path, sort, several=True) if tree is not None]
    lines = [tree.lc.line + 1 if hasattr(tree, "lc") else 1 for tree in trees]
    return [Document(str(path), tree, sort, line) for tree, line in zip(trees, lines, strict=True)]


def validate(part: type[Part], document: Document) -> Part:
    """The document as a pydantic model. Raises UsageError for its first error."""
    try:
        return part.model_validate(_plain_values(document.tree))
    except ValidationError as wrong:
        raise _validation_error(part, document, _first_error(document, wrong)) from None


def nearest_name(name: str, known: Sequence[str]) -> str:
    """The remedy for an unknown name: the nearest known name (case is ignored), or else all known names."""
    originals = {original.lower(): original for original in known}
    nearest = difflib.get_close_matches(name.lower(), originals, 1)
    return f"Did you mean {originals[nearest[0]]}?" if nearest else f"Known are {', '.join(known)}."


def _parse_file(path: Path, sort: DocumentKind, *, several: bool) -> list[Any]:
    try:
        text = read_text(path)
    except NotYaml as broken:
        raise UsageError(sort.wrong_code, f"{path}: {broken}.", f"Make the {sort.noun} smaller.") from None
    except (OSError, ValueError):  # no such file, not UTF-8, or not a file name
        raise UsageError(
            sort.absent_code, f"The {sort.noun} {path} cannot be read.", "Name an existing YAML file."
        ) from None
    try:
        return parse_trees(text, several=several)
    except NotYaml as broken:
        place = f"{path if several else path.name}{f', line {broken.line}' if broken.line else ''}"
        raise UsageError(sort.wrong_code, f"{place}: {broken}.", "Fix the YAML.") from None


def _first_error(document: Document, wrong: ValidationError) -> Mapping[str, Any]:
    """The first error in the document, with the error's path. Unknown keys precede missing keys."""
    errors = [
        {**error, "loc": _error_path(document.tree, error)} for error in _innermost_errors(wrong.errors())
    ]
    return min(errors, key=lambda error: (error["type"] == "missing", document.line(error["loc"])))


def _innermost_errors(errors: Sequence[Any]) -> list[Any]:
    """The errors, without any error whose part encloses another error's part."""
    paths = [error["loc"] for error in errors]

    def holds_another(path: DocumentPath) -> bool:
        return any(len(other) > len(path) and other[: len(path)] == path for other in paths)

    return [error for error in errors if not holds_another(error["loc"])]


def _error_path(tree: Any, error: Mapping[str, Any]) -> tuple[str | int, ...]:
    """The path of an error in the document, without the tags of unions, and with `at` from its context."""
    path: list[str | int] = []
    node = tree
    for step in error["loc"]:
        try:
            node = node[step]
        except (KeyError, IndexError, TypeError):
            if isinstance(step, str) and step.startswith(TAG):
                continue
            node = None
        path.append(step)
    return (*path, *error.get("ctx", {}).get("at", ()))


def _validation_error(part: type[BaseModel], document: Document, error: Mapping[str, Any]) -> UsageError:
    """Pydantic's error as a UsageError with its path and line."""
    path, kind, context = error["loc"], error["type"], error.get("ctx", {})
    at = document.at(*path)
    if kind == "extra_forbidden":
        names = _names_at(part, document.tree, path[:-1])
        return at.wrong("there is no such key.", nearest_name(str(path[-1]), names))
    if kind == "missing":
        return at.wrong("this key is missing.", f"Add {path[-1]}.")
    if kind in {"literal_error", "enum"}:
        return at.wrong(f"{_excerpt(error['input'])} is not one of {context['expected']}.")
    if kind == "string_pattern_mismatch":
        return at.wrong(f"{_excerpt(error['input'])} does not match {context['pattern']}.")
    by_pydantic = f"{error['msg'][:1].lower()}{error['msg'][1:]}".rstrip(".")
    why = context.get("why") or TYPES.get(kind, by_pydantic)
    return at.wrong(f"{why}.", context.get("remedy", ""))


def _excerpt(value: Any) -> str:
    """The beginning of a value, for a message."""
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
    """The schema node that is found by following references.

    If there are several nodes, the one for the document's `kind` is returned, or else the last one.
    """
    options = list(_options(schema, node))
    kind = str(tree.get("kind", "")).lower() if isinstance(tree, Mapping) else ""
    kinds = [option.get("properties", {}).get("kind", {}).get("enum", ()) for option in options]
    same = [option for option, names in zip(options, kinds, strict=True) if kind in map(str.lower, names)]
    return (same or options or [{}])[-1]


def _options(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schemas that a node may have: its own, or the targets of its references and alternatives."""
    if "$ref" in node:
        yield from _options(schema, schema["$defs"][node["$ref"].rsplit("/", 1)[1]])
    elif "anyOf" in node or "oneOf" in node:
        for option in (*node.get("anyOf", ()), *node.get("oneOf", ())):
            yield from _options(schema, option)
    elif {"properties", "items", "additionalProperties"} & node.keys():
        yield node


def _plain_values(node: Any) -> Any:
    """The tree in Python's own types, for pydantic."""
    if isinstance(node, Mapping):
        # YAML reads the key `null` as no value, but it is the name of an option.
        return {"null" if name is None else str(name): _plain_values(value) for name, value in node.items()}
    if isinstance(node, Sequence) and not isinstance(node, str):
        return [_plain_values(value) for value in node]
    if isinstance(node, bool | int | float | str) or node is None:
        for kind in (bool, int, float, str):
            if isinstance(node, kind):
                return kind(node)
        return None
    return str(node)  # a date that YAML has parsed
