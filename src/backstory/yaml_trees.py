"""YAML as a tree with its lines, within bounds far above any document that people write.

A few lines of YAML can stand for a billion parts (aliases of aliases), for nesting that exhausts the
stack, or for a number that takes minutes to read. What is beyond a bound is refused where it stands,
before it is built.
"""

from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.constructor import RoundTripConstructor
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.events import AliasEvent

LARGEST: Final = 16 << 20
DEEPEST: Final = 100
# Parts that aliases may repeat, all aliases of a document together.
MOST_REPEATED: Final = 100_000
MOST_DIGITS: Final = 100
SHOWN: Final = 40
CORE: Final = "tag:yaml.org,2002:"
NUMBERS: Final = {f"{CORE}{name}" for name in ("int", "float")}
# What a tag may say of a value; others make objects of programs, or sets and bytes that no part is.
KNOWN: Final = NUMBERS | {
    f"{CORE}{name}" for name in ("null", "bool", "str", "seq", "map", "timestamp", "merge", "value")
}


class NotYaml(ValueError):
    """What is wrong with a text, in words, and on which line; 0 if that is not known."""

    def __init__(self, why: str, line: int = 0) -> None:
        super().__init__(why)
        self.line = line


def read_text(path: Path) -> str:
    """A file's text; raises OSError, UnicodeDecodeError, and NotYaml for one that is too large."""
    with path.open("rb") as file:
        found = file.read(LARGEST + 1)
    if len(found) > LARGEST:
        raise NotYaml(f"the file is larger than {LARGEST >> 20} MiB")
    return found.decode().replace("\r\n", "\n").replace("\r", "\n")


def parse_trees(text: str, *, several: bool) -> list[Any]:
    """The documents of a text, or the only one; each part knows its line. Raises NotYaml."""
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
    """Composes nodes within the bounds; an alias counts for all that it repeats."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.parts = self.repeated = 0
        self.sizes: dict[int, int] = {}

    def compose_document(self) -> Any:
        """The next document, counted for itself."""
        self.parts, self.repeated, self.sizes = 0, 0, {}
        return super().compose_document()

    def compose_node(self, parent: Any, index: Any) -> Any:
        """The next node, or the one that an alias names."""
        event = self.parser.peek_event()
        if isinstance(event, AliasEvent):
            node = super().compose_node(parent, index)
            self._repeat(node, event)
            return node
        if self.depth >= DEEPEST:
            raise _marked_error(f"this is nested more than {DEEPEST} deep", event.start_mark)
        before = self.parts
        self.parts += 1
        node = super().compose_node(parent, index)
        self.sizes[id(node)] = self.parts - before
        if node.tag not in KNOWN:
            raise _marked_error(
                f"the tag {str(node.tag).removeprefix(CORE)[:SHOWN]} is not allowed here", event.start_mark
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
    """Constructs values; one that is none of its type, such as a 31st of June, is told with its line."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - as it is called
        """The value of a node."""
        try:
            return super().construct_object(node, deep=deep)
        except ValueError as wrong:
            raise _marked_error(f"this is not a value ({wrong})", node.start_mark) from None


def _marked_error(why: str, mark: StringMark) -> MarkedYAMLError:
    return MarkedYAMLError(problem=why, problem_mark=mark)
