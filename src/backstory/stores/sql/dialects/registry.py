"""The dialects by their names: ours, registered ones, and those of installed packages (section 5.4)."""

import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TypeVar, overload

from backstory.errors import UsageError
from backstory.stores.sql.dialects.dialect import Dialect
from backstory.stores.sql.dialects.duckdb import DuckDB
from backstory.stores.sql.dialects.postgres import Postgres
from backstory.stores.sql.dialects.spark import Spark
from backstory.stores.sql.dialects.sqlserver import SqlServer

GROUP = "backstory.dialects"
OTHER_NAMES = {"spark": "spark_iceberg", "sqlserver": "mssql", "postgresql": "postgres"}
NOT_BUILT = {"spark_delta": "Delta tables are not built yet; `spark` writes Iceberg tables."}

Kind = TypeVar("Kind", bound=type[Dialect])

_registered: dict[str, type[Dialect]] = {}
_searched: list[str] = []


@overload
def register_dialect(dialect: Kind, *, replace: bool = False) -> Kind: ...


@overload
def register_dialect(dialect: None = None, *, replace: bool = False) -> Callable[[Kind], Kind]: ...


def register_dialect(dialect: Kind | None = None, *, replace: bool = False) -> Kind | Callable[[Kind], Kind]:
    """Make a dialect known by its DIALECT_NAME; also as a decorator.

    Raises UsageError for a name that is taken (unless `replace`), a dialect without keywords, one
    that lacks a method of the contract, or one whose method takes other arguments.
    """
    if dialect is None:
        return lambda kind: register_dialect(kind, replace=replace)
    if why := fault(dialect):
        raise _refused(dialect, why)
    name = dialect.DIALECT_NAME
    if name in OTHER_NAMES or (name in _registered and not replace):
        raise _refused(dialect, f"the name {name!r} is taken")
    _registered[name] = dialect
    return dialect


def fault(dialect: type[Dialect]) -> str | None:
    """What a dialect lacks of the contract, its DIALECT_NAME, words and methods; None if it is whole."""
    if not dialect.DIALECT_NAME or not dialect.RESERVED_KEYWORDS:
        return "it needs a DIALECT_NAME and RESERVED_KEYWORDS"
    if any(word != word.upper() for word in dialect.RESERVED_KEYWORDS):
        return "its RESERVED_KEYWORDS are not in upper case"
    if missing := sorted(dialect.__abstractmethods__):
        return f"it lacks {', '.join(missing)}"
    for method, ours in inspect.getmembers(Dialect, inspect.isfunction):
        theirs = getattr(dialect, method)
        if not callable(theirs) or _parameters(theirs) != _parameters(ours):
            return f"{method} takes arguments that differ from the contract's"
    return None


def get_dialect(name: str) -> Dialect:
    """The dialect of this name; UsageError, with the names that there are, if there is none."""
    if name in NOT_BUILT and name not in _registered:
        raise UsageError("unknown-dialect", NOT_BUILT[name], f"Known are {', '.join(dialect_names())}.")
    found = _registered.get(OTHER_NAMES.get(name, name))
    if found is None:
        _search()
        found = _registered.get(OTHER_NAMES.get(name, name))
    if found is None:
        raise UsageError(
            "unknown-dialect", f"There is no dialect {name!r}.", f"Known are {', '.join(dialect_names())}."
        )
    return found()


def dialect_names() -> list[str]:
    """The names of all dialects, other names included."""
    _search()
    return sorted({*_registered, *OTHER_NAMES})


def _search() -> None:
    """Load the dialects of installed packages, once."""
    if not _searched:
        _searched.append(GROUP)
        for point in entry_points(group=GROUP):
            register_dialect(point.load())


def _parameters(method: Callable[..., object]) -> list[tuple[str, object]]:
    return [(each.name, each.kind) for each in inspect.signature(method).parameters.values()]


def _refused(dialect: type[Dialect], why: str) -> UsageError:
    return UsageError("wrong-dialect", f"{dialect.__name__} cannot be registered: {why}.", "Fix the dialect.")


for _kind in (DuckDB, Postgres, SqlServer, Spark):
    register_dialect(_kind)
