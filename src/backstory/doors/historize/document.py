"""Read a model's YAML; whatever is wrong is told with its path and line."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from backstory.doors.historize.model import HistState, Model
from backstory.errors import UsageError

Path_ = Sequence[str | int]
Part = TypeVar("Part", bound=BaseModel)

# What pydantic calls the keys of a part that nobody knows.
UNKNOWN = "extra_forbidden"


class Document:
    """A YAML text, and on which line each of its parts stands."""

    def __init__(self, name: str, tree: Any) -> None:
        self.name = name
        self.tree = tree

    def wrong(self, path: Path_, why: str, remedy: str = "Mend the model.") -> UsageError:
        """The error for a part of the document."""
        return UsageError("wrong-model", f"{self.name}, line {self.line(path)}, {told(path)}: {why}", remedy)

    def line(self, path: Path_) -> int:
        """The line of the part, or of the innermost part around it that is there."""
        node, line = self.tree, 1
        for step in path:
            marks = getattr(node, "lc", None)
            try:
                found = node[step]
                place = marks.item(step) if isinstance(node, Sequence) else marks.key(step)  # type: ignore[union-attr]
            except (KeyError, IndexError, TypeError, AttributeError):
                break
            node, line = found, place[0] + 1
        return line


def told(path: Path_) -> str:
    """A path as people write it: `target_datasets[0].target_columns[2].datatype`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.lstrip(".") or "the document"


def read_document(path: Path) -> Document:
    """The YAML (1.2) of a file; UsageError if there is none or it is broken."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise UsageError(
            "no-model", f"The model {path} cannot be read.", "Name an existing YAML file."
        ) from None
    try:
        tree = YAML(typ="rt").load(text)
    except MarkedYAMLError as broken:
        line = broken.problem_mark.line + 1 if broken.problem_mark else 1
        raise UsageError(
            "wrong-model", f"{path.name}, line {line}: {broken.problem}.", "Mend the YAML."
        ) from None
    except YAMLError as broken:
        raise UsageError("wrong-model", f"{path.name}: {broken}.", "Mend the YAML.") from None
    return Document(path.name, tree)


def read_model(path: Path) -> tuple[Model, Document]:
    """The model that a file holds, as written, and its document."""
    document = read_document(path)
    return _validated(Model, document), document


def read_state(path: Path) -> HistState | None:
    """The history's metadata in a lock file, None if there is no such file."""
    return _validated(HistState, read_document(path)) if path.exists() else None


def _validated(part: type[Part], document: Document) -> Part:
    try:
        return part.model_validate(_plain(document.tree))
    except ValidationError as wrong:
        found = _innermost(wrong.errors())
        # A misspelled key tells more than the key that it leaves missing.
        first = min(found, key=lambda error: (error["type"] == "missing", document.line(error["loc"])))
        raise _told(part, document, first) from None


def _innermost(errors: Sequence[Any]) -> list[Any]:
    """The errors without those of parts that are wrong only because something in them is."""
    paths = [error["loc"] for error in errors]

    def holds_another(path: Path_) -> bool:
        return any(len(other) > len(path) and other[: len(path)] == path for other in paths)

    return [error for error in errors if not holds_another(error["loc"])]


def _told(part: type[BaseModel], document: Document, error: Mapping[str, Any]) -> UsageError:
    path = error["loc"]
    if error["type"] == UNKNOWN:
        known = _names_at(part, path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, 1)
        remedy = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(known)}."
        return document.wrong(path, "there is no such key.", remedy)
    if error["type"] == "missing":
        return document.wrong(path, "this key is missing.", f"Add {path[-1]}.")
    context = error.get("ctx", {})
    if error["type"] in {"literal_error", "enum"}:
        return document.wrong(path, f"{error['input']!r} is none of {context['expected']}.")
    if error["type"] == "string_pattern_mismatch":
        return document.wrong(path, f"{error['input']!r} does not match {context['pattern']}.")
    return document.wrong(path, f"{error['msg'][:1].lower()}{error['msg'][1:]}.")


def _names_at(part: type[BaseModel], path: Path_) -> list[str]:
    """The keys that a part of the document may have."""
    schema = part.model_json_schema()
    node = schema
    for step in path:
        node = _followed(schema, node)
        known = node.get("properties", {})
        node = node.get("items", {}) if isinstance(step, int) else known.get(step, {})
    return sorted(_followed(schema, node).get("properties", {}))


def _followed(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Any:
    """The node that references and alternatives lead to."""
    for option in node.get("anyOf", []):
        if "$ref" in option or "properties" in option:
            node = option
    if "$ref" in node:
        return _followed(schema, schema["$defs"][node["$ref"].rsplit("/", 1)[1]])
    return node


def _plain(node: Any) -> Any:
    """The tree in Python's own types, which pydantic knows."""
    if isinstance(node, Mapping):
        return {str(name): _plain(value) for name, value in node.items()}
    if isinstance(node, Sequence) and not isinstance(node, str):
        return [_plain(value) for value in node]
    if isinstance(node, bool | int | float | str) or node is None:
        for kind in (bool, int, float, str):
            if isinstance(node, kind):
                return kind(node)
        return None
    return str(node)  # a date that YAML reads by itself
