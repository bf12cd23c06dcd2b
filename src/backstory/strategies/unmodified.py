"""The mark of a cell that a change leaves as it is, which is something else than NULL."""

import enum
from typing import Final


class Unmodified(enum.Enum):
    """The type of the mark, so that `is UNMODIFIED` narrows and the mark survives pickling."""

    UNMODIFIED = "unmodified"


UNMODIFIED: Final = Unmodified.UNMODIFIED
