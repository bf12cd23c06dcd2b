"""What ended a Java, out of all that it printed."""

import re
from typing import Final

# The first that a line begins with or has, from what says most to what says least.
_LINES: Final = (
    r"Server access error.*?\((?P<said>.*)\)",
    r"(?P<said>\[(?:unresolved dependency|download failed).*)",
    r"^\s*::\s*(?P<said>(?:unresolved dependency|download failed).*?)\s*(?:::)?$",
    r"^#\s+(?P<said>(?:SIG\w+|There is insufficient memory|Internal Error).*)",
    r"^java\.lang\.module\.\w+: (?P<said>.+)",  # a Java without all of its modules
    r"^Error(?: occurred| opening|:)\s*(?P<said>.+)",
    r"(?P<said>Unrecognized .*option.*|Invalid .*heap size.*|Could not reserve enough space.*)",
    r"^Caused by: (?P<said>.+)",
    r'^Exception in thread "main" (?P<said>.+)',
    r"^(?P<said>\S*(?:Exception|Error): .+)",
)


def reason(text: str) -> str:
    """The line that matters, without what is before it in its line; the last one where none stands out."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    for pattern in _LINES:
        for line in lines:
            if match := re.search(pattern, line):
                return match["said"].strip(" .")
    return lines[-1].strip(" .") if lines else "Java said nothing"
