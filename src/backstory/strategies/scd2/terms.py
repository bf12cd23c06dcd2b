"""What the plan of a load goes by: plain data, which Spark's tasks get as well."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from backstory.strategies.scd2.transitions import WORDS, State

# The sides of a load.
STAGED, BASE, OPEN = "staged", "base", "open versions"
# Then the rows of the base that begin versions, and the versions that ended, including archived ones.
BEGINNING, EARLIER = "beginning", "earlier versions"
# What is asked of each row beside its values; no column of a model has a blank in its name.
LIVE, IN_SCOPE, APPEARS = "is live", "in scope", "appears"


@dataclass(frozen=True, slots=True)
class Flag:
    """What a row of the base gets that the stage lacks: a value, and the load's instant in the column `at`.

    `live` says that such a row is one of the history's records all the same.
    """

    column: str
    value: Any
    at: str | None = None
    live: bool = False


@dataclass(frozen=True, slots=True)
class LoadTerms:
    """The columns of a load, its rules and its moment.

    `key` is the record's key in base and history, `business` are the columns that people know it by. A row of
    the base changed if one of `compared` did. In the stage `needed` columns are never NULL, and texts have at
    most so many characters (`lengths`). `unsure` are the columns that a hash may not tell apart, those of
    floats with the digits that are hashed. `mirrored` are the history's columns with those of the base.

    With `collapses` identical rows of the stage are one. `dated` is the effective date of which no earlier
    one may follow, `flag` what becomes of a row that is gone. `late` says that the history knows the load's
    instant or a later one, `first` that there is no base yet.
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
