"""What the plan of a batch came to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backstory.formats.values.mended import Mended


@dataclass(frozen=True, slots=True)
class Outcome:
    """Rows that go and rows that come, as Arrow tables or frames, and what was counted on the way.

    `changes` says whether there are any, `disorder` whether the versions of a key will not stand one after
    the other, `mended` what readers did to values that did not quite fit.
    """

    gone: Any
    come: Any
    counts: Mapping[str, int]
    changes: bool
    disorder: bool
    mended: Mended
