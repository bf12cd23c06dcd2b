"""The options of calls, declared by a `TypedDict`: types, defaults, and descriptions in its docstring."""

import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from functools import wraps
from inspect import Parameter, cleandoc, signature
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_ATTRIBUTE: Final = re.compile(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", re.MULTILINE)
Method = TypeVar("Method", bound=Callable[..., Any])


class CallOption(NamedTuple):
    """An option of a call: name, description, default, and type, with `str` in place of Spark's `Column`."""

    name: str
    hint: Any
    text: str
    default: Any = None


def declared_options(*declarations: type, request: type | None = None) -> Iterator[CallOption]:
    """The options that the docstrings of these declarations describe as attributes. Each option occurs once.

    Args:
        declarations: `TypedDict`s whose docstrings describe their options.
        request: The dataclass whose fields have the defaults, if they do not follow from the types.
    """
    names = set()
    defaults = {field.name: _default(field) for field in fields(request)} if request else {}
    for declaration in declarations:
        hints = get_type_hints(declaration, localns={"Column": str})
        for name, lines in _ATTRIBUTE.findall(declaration.__doc__ or ""):
            if name not in names:
                names.add(name)
                default = defaults[name] if name in defaults else _simple_default(hints[name])
                yield CallOption(name, hints[name], " ".join(lines.split()), default)


def alternatives(hint: Any) -> set[Any]:
    """The types in a union, or the single type, without their parameters."""
    parts = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    return {get_origin(part) or part for part in parts}


def _default(field: "Field[Any]") -> Any:
    return None if field.default is MISSING else field.default


def _simple_default(hint: Any) -> Any:
    """False for a flag, the first value of a `Literal`, or None for any other type."""
    types = alternatives(hint)
    if NoneType not in types and Literal in types:
        return get_args(hint)[0]
    return False if types == {bool} else None


def with_options(*declarations: type, request: type | None = None) -> Callable[[Method], Method]:
    """A decorator that gives a method with `**options` the signature and docstring of the declared options.

    An editor reads the options from the annotation of `**options`. A call with any other option raises
    TypeError. The arguments are the same as for `declared_options`.
    """
    options = list(declared_options(*declarations, request=request))
    names = {option.name for option in options}
    added = [
        Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=option.hint)
        for option in options
    ]
    texts = "\n".join(f"* `{option.name}`: {option.text}" for option in options)

    def decorate(method: Method) -> Method:
        form = signature(method)

        @wraps(method)
        def call(self: Any, *arguments: Any, **words: Any) -> Any:
            for word in words:
                if word not in names and word not in form.parameters:
                    raise TypeError(f"{method.__name__}() got an unexpected keyword argument {word!r}")
            return method(self, *arguments, **words)

        parameters = [*form.parameters.values()][:-1]
        call.__signature__ = form.replace(parameters=[*parameters, *added])  # type: ignore[attr-defined]
        call.__doc__ = method.__doc__ and f"{cleandoc(method.__doc__)}\n\n{texts}"
        return cast("Method", call)

    return decorate
