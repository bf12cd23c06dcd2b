"""Options of Python calls as flags of commands, with the same names, defaults and descriptions."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from inspect import Parameter as Argument
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from cyclopts import Group, Parameter

from backstory.cli.options import Flag, Names, NamesOrAll, Text, parse_pairs, parse_parts
from backstory.cli.output import in_flags
from backstory.engine.run_context import RemarkOptions
from backstory.formats.file_options import FileWords
from backstory.model.options import CallOption, alternatives, declared_options

Command: TypeAlias = Callable[..., Any]

_FILES: Final = Group("Files in other forms", sort_key=5)
_REMARK: Final = Group("About the commit", sort_key=8)
_GROUPS: Final[Mapping[str, Group]] = {
    **dict.fromkeys(FileWords.__annotations__, _FILES),
    **dict.fromkeys(RemarkOptions.__annotations__, _REMARK),
}
# How the pairs of a mapping are written.
_PAIRS: Final = {"rename": "old=new", "retype": "column=TYPE", "scope": "column=value", "type": "column=TYPE"}


class _Flag(NamedTuple):
    """The type of a flag, its default, and the function that parses its words."""

    type: Any
    default: Any
    parse: Callable[[Any], Any] | None


def with_flags(*declarations: type, request: type | None = None) -> Callable[[Command], Command]:
    """A decorator for a command with `**words` that adds the declared options of Python calls as flags.

    The command's own options precede them, or follow them if they are declared after `options`. The arguments
    are those of `declared_options`.
    """
    flags = {option.name: _flag(option) for option in declared_options(*declarations, request=request)}

    def decorate(command: Command) -> Command:
        *own, _ = signature(command).parameters.values()
        place = [parameter.name for parameter in own].index("options")
        added = (
            Argument(name, Argument.KEYWORD_ONLY, default=flag.default, annotation=flag.type)
            for name, flag in flags.items()
        )
        parameters = [*own[:place], *added, *own[place:]]

        @wraps(command)
        def run(*arguments: Any, **words: Any) -> Any:
            for name, flag in flags.items():
                word = words.get(name, flag.default)
                words[name] = flag.parse(word) if flag.parse else word
            return command(*arguments, **words)

        run.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _flag(option: CallOption) -> _Flag:
    """The flag of an option. Lists and mappings are written as words separated by commas."""
    types = alternatives(option.hint)
    text = in_flags(option.text)
    type_, default = option.hint, option.default
    parse: Callable[[Any], Any] | None = None
    if Mapping in types:
        form = _PAIRS[option.name]
        type_, default, parse = Names, (), partial(parse_pairs, form=f"--{option.name} {form}")
        text = f"{text} Written as {form}. Separate several with commas."
    elif {Sequence, bool} <= types:
        type_, default, parse = NamesOrAll, None, _names_or_all
    elif Sequence in types:
        type_, default, parse = Names, (), _names
        text = f"{text} Separate several with commas."
    elif bool in types:
        type_, default = Flag, False
    elif Path in types:
        type_ = Path | None
    elif str in types:
        type_ = Text
    about = (
        Parameter(help=text, group=_GROUPS[option.name]) if option.name in _GROUPS else Parameter(help=text)
    )
    return _Flag(Annotated[type_, about], default, parse)


def _names(words: tuple[str, ...]) -> list[str] | None:
    return parse_parts(words) or None


def _names_or_all(words: tuple[str, ...] | None) -> list[str] | bool | None:
    """The names, or True for a flag without names."""
    return None if words is None else parse_parts(words) or True
