"""Options of calls as a `TypedDict` declares them: types, and descriptions in its docstring."""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, get_type_hints

_ATTRIBUTE: Final = re.compile(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", re.MULTILINE)


class Option(NamedTuple):
    """An option of a call: its name, its type with `str` for a column of Spark, and its description."""

    name: str
    hint: Any
    text: str


def declared_options(*declarations: type) -> Iterator[Option]:
    """The options of these declarations that their docstrings describe as attributes, each of them once."""
    names = set()
    for declaration in declarations:
        hints = get_type_hints(declaration, localns={"Column": str})
        for name, lines in _ATTRIBUTE.findall(declaration.__doc__ or ""):
            if name not in names:
                names.add(name)
                yield Option(name, hints[name], " ".join(lines.split()))
