"""The terms of a load's plan, as plain data that is also sent to Spark's tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from backstory.strategies.scd2.transitions import WORDS, State

# The sides of a load.
STAGED, BASE, OPEN = "staged", "base", "open versions"
# Sides of the second plan: the base's rows that begin versions, and closed versions, including archived
# versions.
BEGINNING, EARLIER = "beginning", "earlier versions"
# Flags of a row. No column of a model has a space in its name.
LIVE, IN_SCOPE, APPEARS = "is live", "in scope", "appears"


@dataclass(frozen=True, slots=True)
class Flag:
    """The deletion flag of a base row that is missing from the stage.

    The flag is a value, and the load's instant in `at`. With `live`, the flagged row still counts as a record
    of the history.
    """

    column: str
    value: Any
    at: str | None = None
    live: bool = False


@dataclass(frozen=True, slots=True)
class LoadTerms:
    """The columns of a load, its rules and its instant.

    * `key`: the column of the record's key in base and history; `business`: its business keys.
    * `mirrored`: the history's columns, each with its column in the base.
    * `words`: the states as they are stored.
    * `compared`: a row of the base changed if one of these columns changed.
    * `needed`: columns that are never NULL in the stage; `lengths`: the maximum length of strings.
    * `unsure`: columns whose changes a hash may miss; for floats, with the number of hashed digits.
    * `collapses`: whether identical rows of the stage count as one.
    * `dated`: the column of the effective date, which must not decrease.
    * `flag`: the flag of rows that are missing from the stage, or None if they are deleted.
    * `late`: whether the history has a start or end at the load's instant or later.
    * `first`: whether there is no base yet.
    """

    key: str
    business: tuple[str, ...]
    mirrored: Mapping[str, str]
    instant: datetime
    run: str
    words: Mapping[State, str] = field(default_factory=lambda: WORDS)
    compared: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    lengths: Mapping[str, int] = field(default_factory=dict)
    unsure: Mapping[str, int | None] = field(default_factory=dict)
    collapses: bool = False
    dated: str | None = None
    flag: Flag | None = None
    late: bool = False
    first: bool = False
