"""What readers correct in the values of a file, and how it is reported: never with a value (F11, F18)."""

from collections import Counter
from collections.abc import Mapping

import structlog

log = structlog.get_logger()

# How many values by file, column (empty: all of the file's) and what was done to them.
Mended = Counter[tuple[str, str, str]]
ROUNDED, RAW = "rounded", "raw"


def tell(mended: Mended) -> None:
    """Log one warning a file and column for rounded decimals, one a file for BINARY that is not base64."""
    for (file, column, deed), values in sorted(mended.items()):
        if deed == ROUNDED:
            log.warning(
                "decimals with more digits than their column were rounded",
                file=file,
                column=column,
                values=values,
            )
        else:
            log.warning("values that are not base64 were stored as they are", file=file, cells=values)


def with_mended(counts: Mapping[str, int], mended: Mended) -> dict[str, int]:
    """The counts of a commit, with `rounded` if any decimal was."""
    rounded = sum(values for (_, _, deed), values in mended.items() if deed == ROUNDED)
    return {**counts, **({ROUNDED: rounded} if rounded else {})}
