"""The options of calls, with their types, defaults and texts.

A frozen class of attrs declares the arguments of a call and is its request. A converter takes an option's
value as callers write it. If a method takes any number of arguments, or has options of its own, a `TypedDict`
declares the other options. The docstring of the class or the `TypedDict` contains the texts.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial, wraps
from inspect import Parameter, cleandoc, signature
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Any,
    Concatenate,
    Final,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from attrs import NOTHING, Factory, fields_dict, has

_ATTRIBUTE: Final = re.compile(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", re.MULTILINE)
_NAMES: Final = {"Column": str}  # how a command writes a Spark column
_FACTORY: Any = Factory
# The metadata of an option that a table without a key cannot have.
NEEDS_KEY: Final = {"needs_key": True}
Method = TypeVar("Method", bound=Callable[..., Any])
Words = ParamSpec("Words")
Owner = TypeVar("Owner")
Request_co = TypeVar("Request_co", covariant=True)
Returned = TypeVar("Returned")


class CallOption(NamedTuple):
    """An option of a call: name, type as callers write it, description, and default.

    The type has `str` in place of Spark's `Column`. The default of a required option is `Parameter.empty`.
    """

    name: str
    hint: Any
    text: str
    default: Any = None


def declared_options(*declarations: type) -> Iterator[CallOption]:
    """The options described in the docstrings of these declarations and of their bases, each option once."""
    names = set()
    for declaration in declarations:
        options = _fields(declaration) if has(declaration) else _keys(declaration)
        for documented in declaration.__mro__:
            for name, lines in _ATTRIBUTE.findall(documented.__doc__ or ""):
                if name in options and name not in names:
                    names.add(name)
                    yield CallOption(name, options[name][0], " ".join(lines.split()), options[name][1])


def _keys(declaration: type) -> dict[str, tuple[Any, Any]]:
    """The types and defaults of a `TypedDict`, by name."""
    hints = get_type_hints(declaration, localns=_NAMES)
    return {name: (hint, _simple_default(hint)) for name, hint in hints.items()}


def _fields(request: type) -> dict[str, tuple[Any, Any]]:
    """The type and default of each field of a request, by name. A converter's argument sets the type."""
    options = {}
    for name, field in fields_dict(request).items():
        if field.converter is not None:
            hint = next(iter(get_type_hints(field.converter, localns=_NAMES).values()))
        elif isinstance(field.type, str):  # no option
            continue
        else:
            hint = get_type_hints(SimpleNamespace(__annotations__={name: field.type}), localns=_NAMES)[name]
        default = None if isinstance(field.default, _FACTORY) else field.default
        options[name] = hint, Parameter.empty if default is NOTHING else default
    return options


def _positional(request: type) -> list[Parameter]:
    """The fields of a request that a call accepts by position or by name, as parameters."""
    options = _fields(request)
    return [
        Parameter(
            name, Parameter.POSITIONAL_OR_KEYWORD, annotation=options[name][0], default=options[name][1]
        )
        for name, field in fields_dict(request).items()
        if not field.kw_only
    ]


def alternatives(hint: Any) -> set[Any]:
    """The types in a union, or the single type, without their parameters."""
    parts = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    return {get_origin(part) or part for part in parts}


def _simple_default(hint: Any) -> Any:
    """False for a flag, a `Literal`'s first value, or None for any other type."""
    types = alternatives(hint)
    if NoneType not in types and Literal in types:
        return get_args(hint)[0]
    return False if types == {bool} else None


def with_options(*declarations: type) -> Callable[[Method], Method]:
    """A decorator that gives a method with `**options` the signature and docstring of the declared options.

    An editor reads the options from the annotation of `**options`. A call with any other option raises
    TypeError.
    """
    options = list(declared_options(*declarations))
    names = {option.name for option in options}

    def decorate(method: Method) -> Method:
        form = signature(method)

        @wraps(method)
        def call(self: Any, *arguments: Any, **words: Any) -> Any:
            _refuse_unknown(method, words, names | form.parameters.keys())
            return method(self, *arguments, **words)

        return cast("Method", _describe(call, options))

    return decorate


class _Decorator(Protocol[Words, Request_co]):
    """The type of a decorator that replaces the request of a method with the request's own arguments."""

    @overload
    def __call__(
        self, method: Callable[[Owner, Request_co], Returned], /
    ) -> Callable[Concatenate[Owner, Words], Returned]: ...

    @overload
    def __call__(
        self, method: Callable[[Owner, Any, Request_co], Returned], /
    ) -> Callable[Concatenate[Owner, Any, Words], Returned]: ...


def with_request(
    request: Callable[Words, Request_co], *, build: Callable[..., Any] | None = None
) -> _Decorator[Words, Request_co]:
    """A decorator for a method whose last argument is a request. Callers pass its fields as arguments.

    Fields with texts are options, which are passed as keywords. Type checkers check the names and types of
    the fields. `build` makes the request from its class and the keywords. Without `build`, any other keyword
    raises TypeError.
    """
    options = list(declared_options(cast("type", request)))
    positional = _positional(cast("type", request))
    names = {option.name for option in options} | {argument.name for argument in positional}
    make = partial(build, request) if build else cast("Any", request)

    def decorate(method: Any) -> Any:
        *own, _ = signature(method).parameters

        @wraps(method)
        def call(self: Any, *arguments: Any, **words: Any) -> Any:
            mine = {name: words.pop(name) for name in own if name in words}
            if not build:
                _refuse_unknown(method, words, names)
            count = len(own) - 1 - len(mine)
            made = make(*arguments[count:], **words)
            return method(self, *arguments[:count], request=made, **mine)

        return _describe(call, options, positional)

    return cast("_Decorator[Words, Request_co]", decorate)


def _refuse_unknown(method: Any, words: Iterable[str], names: Collection[str]) -> None:
    for word in words:
        if word not in names:
            raise TypeError(f"{method.__name__}() got an unexpected keyword argument {word!r}")


def _describe(call: Any, options: Sequence[CallOption], positional: Sequence[Parameter] = ()) -> Any:
    """The function with these parameters instead of its last one, and with the options in its docstring."""
    form = signature(call)
    added = [
        Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=option.hint)
        for option in options
    ]
    call.__signature__ = form.replace(parameters=[*[*form.parameters.values()][:-1], *positional, *added])
    texts = "\n".join(f"* `{option.name}`: {option.text}" for option in options)
    call.__doc__ = call.__doc__ and f"{cleandoc(call.__doc__)}\n\n{texts}"
    return call
