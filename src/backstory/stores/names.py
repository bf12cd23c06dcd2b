"""The names that columns can have in a table."""

from collections.abc import Callable, Iterable, Sequence

from backstory.errors import Refused
from backstory.model.schema import Column

# Whether a store keeps a name for itself.
Reserves = Callable[[str], bool]


def stored_names(reserves: Reserves, sources: Iterable[str], known: Iterable[Column] = ()) -> dict[str, str]:
    """The names that a table has for a source's columns, those of the `known` columns included (F21).

    A name that the store keeps for itself gets an underscore behind, one more while that is taken; any
    other is stored as it is unless such a one took it.
    """
    names = {column.source: column.name for column in known}
    kept = {source: reserves(source) for source in sources if source not in names}
    for source in sorted(kept, key=kept.__getitem__):
        name = f"{source}_" if kept[source] else source
        while name in names.values():
            name += "_"
        names[source] = name
    return names


def refuse_names(reserves: Reserves, names: Sequence[str]) -> None:
    """Raises Refused for column names that no table can have."""
    for name in names:
        if not name or reserves(name):
            raise Refused(
                "reserved-column",
                f"A column cannot be named {name!r}: Iceberg keeps the name for itself.",
                "Rename the column at its source or leave it out.",
            )
    if len(set(names)) < len(names):
        raise Refused("repeated-column", "Two columns have one name.", "Name each column once.")
