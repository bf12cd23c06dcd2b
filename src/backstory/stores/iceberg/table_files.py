"""The files of a table that Iceberg's Java loaded, opened here with what its FileIO is told."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from backstory.stores.iceberg.jvm import texts_of
from backstory.stores.openings import TableFiles

# Java's own ways to files that S3's interface gives to us as well, by the names of their classes.
_REACHED: Final = frozenset({"S3FileIO", "ResolvingFileIO"})


def files_of(iceberg: Any) -> TableFiles:
    """The files of a table of Iceberg's."""
    return TableFiles(partial(_properties, iceberg))


def _properties(iceberg: Any) -> Mapping[str, str] | None:
    """The properties of its FileIO, and the credentials that a catalog hands out; None for other FileIOs."""
    io = iceberg.io()
    if str(io.getClass().getSimpleName()) not in _REACHED:
        return None
    return {**texts_of(io.properties()), **_handed_out(io, str(iceberg.location()))}


def _handed_out(io: Any, location: str) -> dict[str, str]:
    """The credentials whose prefix is that of the table, the most exact ones."""
    from py4j.protocol import Py4JError

    try:
        credentials = {str(each.prefix()): each.config() for each in io.credentials()}
    except Py4JError:  # an older Iceberg's FileIO has none
        return {}
    prefixes = [each for each in credentials if location.startswith(each)]
    return dict(credentials[max(prefixes, key=len)]) if prefixes else {}
