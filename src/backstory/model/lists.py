"""Lists as people write them in one text."""

import re
from typing import Final

_COMMA: Final = re.compile(r",(?![^()]*\))")


def split_list(text: str) -> list[str]:
    """The parts of a text between commas; one within parentheses parts nothing."""
    return [part.strip() for part in _COMMA.split(text) if part.strip()]
