"""Names that differ by case alone: one name to Spark, Trino, DuckDB and most others that read a table."""

from collections.abc import Collection, Iterable, Iterator

from backstory.model.types import ColumnType, Kind


def folded(name: str) -> str:
    """The name as those engines compare it."""
    return name.lower()


def other_spelling(name: str, names: Iterable[str]) -> str | None:
    """The first of the names that differs from this one by case alone."""
    return next((each for each in names if each != name and folded(each) == folded(name)), None)


def names_alike(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two names, in their order, that differ by case alone."""
    before: dict[str, str] = {}
    for name in names:
        if (other := before.setdefault(folded(name), name)) != name:
            return other, name
    return None


def fields_alike(type_: ColumnType) -> tuple[str, str] | None:
    """The first two fields of one struct, anywhere in the type, that differ by case alone."""
    return next(filter(None, map(names_alike, _structs(type_))), None)


def is_reserved(name: str, reserved: Iterable[str]) -> bool:
    """Whether a name is reserved, in whatever case."""
    return folded(name) in map(folded, reserved)


def spelling_hint(lacking: Iterable[str], names: Collection[str]) -> str:
    """A sentence that names the spelling of what is lacking, with a blank behind; empty if there is none."""
    pairs = ((name, other_spelling(name, names)) for name in lacking)
    words = [f"{other} instead of {name}" for name, other in pairs if other is not None]
    return f"Write {', '.join(words)}. " if words else ""


def _structs(type_: ColumnType) -> Iterator[list[str]]:
    if type_.kind is Kind.STRUCT:
        yield [name for name, _ in type_.parts]
    for _, part in type_.parts:
        yield from _structs(part)
