"""Which cells of rows leave their column as it was: a column of booleans beside the column."""

from typing import Final

# No column of a source is called so.
KEEPS: Final = "backstory: keeps {}"
_BEFORE: Final = KEEPS.format("")


def kept_column(name: str) -> str | None:
    """The column of which one with this name says which cells are kept; None for any other column."""
    return name.removeprefix(_BEFORE) if name.startswith(_BEFORE) else None
