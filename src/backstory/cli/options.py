"""Options that several commands share, and parsers for their values.

Options of Python calls become flags of commands, with the same names, defaults and descriptions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from inspect import Parameter as Argument
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from backstory.cli.output import Output, choose_output, in_flags, print_line, print_lines, show, show_one
from backstory.engine.run_context import RemarkOptions
from backstory.errors import UsageError, bad_option
from backstory.formats.file_options import FILE_OPTIONS
from backstory.model.options import CallOption, alternatives, declared_options
from backstory.model.values import key_of_words, split_list
from backstory.settings import Settings, load

COMMON = Group("Common options", sort_key=9)
NOT_NEGATIVE = Number(gte=0)
Limit = Annotated[int | None, Parameter(validator=NOT_NEGATIVE)]
RowLimit = Annotated[int | None, Parameter(validator=NOT_NEGATIVE, help="Largest number of rows to show.")]
NamedTable = Annotated[str, Parameter(help="The table, as schema.table.")]
Namespace = Annotated[str, Parameter(help="Schema of the datasets' tables.")]
HistoryUrl = Annotated[
    str | None,
    Parameter(help="Database with the history of a model: duckdb:///path or postgresql://host/name."),
]
Names = Annotated[tuple[str, ...], Parameter(consume_multiple=False, negative="", show_default=False)]
_SEVERAL = Parameter(consume_multiple=True, negative="", show_default=False, allow_leading_hyphen=False)
NamesOrAll = Annotated[tuple[str, ...] | None, _SEVERAL]
Key = Annotated[tuple[str, ...], _SEVERAL]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
Text = Annotated[str | None, Parameter(show_default=False)]


@Parameter(name="*", group=COMMON)
@dataclass(frozen=True)
class Options:
    """The options of every command: the warehouse, and the form and amount of the output.

    Attributes:
        warehouse: Folder of the embedded warehouse. Default: BACKSTORY_WAREHOUSE, or ./warehouse.
        config: Configuration file. Default: BACKSTORY_CONFIG, or ./backstory.toml if it exists.
        output: Output as table, json or csv. Default: table on a terminal, else json.
        wide: Print whole values, even beyond the width of the terminal.
        quiet: Print only the result and errors.
        verbose: Print the log of Spark, and the stack trace of an error.
    """

    warehouse: Path | None = None
    config: Path | None = None
    output: Output | None = None
    wide: Annotated[bool, Parameter(negative="", show_default=False)] = False
    quiet: Annotated[bool, Parameter(negative="", alias="-q", show_default=False)] = False
    verbose: Annotated[bool, Parameter(negative="", alias="-v", show_default=False)] = False

    @property
    def branch(self) -> str | None:
        """The branch to read tables from, or None."""
        return None

    @property
    def output_format(self) -> Output:
        """The output format, or its default."""
        return choose_output(self.output)

    @property
    def for_people(self) -> bool:
        """Whether people read the output. Programs read JSON and CSV."""
        return self.output_format == "table"

    def show(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
        """Print rows. `columns` are the headings, which are needed if there may be no rows."""
        show(rows, self.output_format, columns, wide=self.wide)

    def show_one(self, record: Mapping[str, Any]) -> None:
        """Print one record."""
        show_one(record, self.output_format, wide=self.wide)

    def show_document(
        self, document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()
    ) -> None:
        """Print the document as JSON, or else its rows as a table or CSV."""
        if self.output_format == "json":
            self.show_one(document)
        else:
            self.show(rows, columns)

    def report(self, record: Mapping[str, Any], lines: Iterable[str]) -> None:
        """Print the lines for people, or the record for programs."""
        if self.for_people:
            print_lines(lines)
        else:
            self.show_one(record)

    def remark(self, text: str) -> None:
        """Print a remark, such as `No differences.`, on standard error unless `--quiet` is set."""
        if not self.quiet:
            print_line(text)

    def settings(self) -> Settings:
        """The settings of this run."""
        return load(self.warehouse, self.config)


@Parameter(name="*", group=COMMON)
@dataclass(frozen=True)
class BranchOptions(Options):
    """The common options of commands that read a table or its branch.

    Attributes:
        branch: Read this branch of the table, on which deliveries were previewed.
    """

    branch: Text = None


DEFAULTS = Options()
BRANCH_DEFAULTS = BranchOptions()


def parse_names(options: tuple[str, ...]) -> list[str]:
    """The names in an option, separated by commas or given in repeated options."""
    return [name.strip() for text in options for name in text.split(",") if name.strip()]


def parse_parts(options: tuple[str, ...]) -> list[str]:
    """The parts of an option, separated by commas outside of parentheses and quotes."""
    return [part for text in options for part in split_list(text)]


def parse_pairs(options: tuple[str, ...], form: str) -> dict[str, str]:
    """The pairs in an option, such as `name=value`. `form` describes the option in errors."""
    pairs, flag = dict[str, str](), form.partition(" ")[0]
    for part in parse_parts(options):
        name, equals, word = part.partition("=")
        if not (name and equals and word):
            lacks = "a name or a value" if equals else "'='"
            raise bad_option(f"{flag} {part} has no {lacks}.", f"Write {form}.")
        if pairs.setdefault(name, word) != word:
            raise bad_option(f"{flag} has two values for {name}.", "Keep one of them.")
    return pairs


def require_key(words: tuple[str, ...]) -> None:
    """Raise UsageError if no key is given."""
    if not words:
        remedy = "Write its value, or a=1 b=2 for a key of several columns."
        raise UsageError("no-key", "No key is given.", remedy)


def parse_named_key(words: tuple[str, ...]) -> dict[str, str]:
    """The words of a key in a database, by column. Raises UsageError if a value has no column name."""
    key = key_of_words((), words)
    if isinstance(key, str):
        raise UsageError("other-key", "The key's column must be named for a database.", "Write name=value.")
    return key


def describe_key(names: Sequence[str], words: tuple[str, ...]) -> str:
    """The words of a key as `name=value` for each of its columns."""
    key = key_of_words(names, words)
    values = key if isinstance(key, dict) else dict.fromkeys(names[:1], key)
    return " ".join(f"{name}={value}" for name, value in values.items())


def refuse_for_database(options: Options, *, known_times: bool) -> None:
    """Raise UsageError if a question about a history in a database names known times or a branch."""
    if known_times:
        raise bad_option(
            "A history in a database keeps no known times.", "Omit --known-at and --axis, or --url."
        )
    if options.branch is not None:
        raise bad_option("A history in a database has no branches.", "Omit --branch, or --url.")


Command: TypeAlias = Callable[..., Any]

_FILES: Final = Group("Files in other forms", sort_key=5)
_REMARK: Final = Group("About the commit", sort_key=8)
_GROUPS: Final[Mapping[str, Group]] = {
    **dict.fromkeys(FILE_OPTIONS, _FILES),
    **dict.fromkeys(RemarkOptions.__annotations__, _REMARK),
}
# The form of a mapping's pairs.
_PAIRS: Final = {"rename": "old=new", "retype": "column=TYPE", "scope": "column=value", "type": "column=TYPE"}


class _Flag(NamedTuple):
    """The type of a flag, its default, and the function that parses its values."""

    type: Any
    default: Any
    parse: Callable[[Any], Any] | None


def with_flags(*declarations: type) -> Callable[[Command], Command]:
    """A decorator for a command with `**words` that adds the declared options of Python calls as flags.

    The command's own options precede these flags, or follow them if declared after `options`.
    """
    flags = {option.name: _flag(option) for option in declared_options(*declarations)}

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
        # A flag without names means all.
        type_, default, parse = (
            NamesOrAll,
            None,
            lambda words: None if words is None else parse_parts(words) or True,
        )
    elif Sequence in types:
        type_, default, parse = Names, (), lambda words: parse_parts(words) or option.default
        text = f"{text} Separate several with commas."
    elif bool in types:
        type_, default = Flag, False
    elif Path in types:
        type_ = Path | None
    elif default is Argument.empty:
        type_ = str
    elif str in types:
        type_ = Text
    about = (
        Parameter(help=text, group=_GROUPS[option.name]) if option.name in _GROUPS else Parameter(help=text)
    )
    return _Flag(Annotated[type_, about], default, parse)
