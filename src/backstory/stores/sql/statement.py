"""A statement of a load, before its placeholders are filled in."""

from typing import NamedTuple


class Statement(NamedTuple):
    """One statement of a load, by the name that the log has for it."""

    step: str
    sql: str
