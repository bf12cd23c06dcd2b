"""The time in a file's path (section 1.4): group 1 of a pattern, read by a format."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from backstory.errors import Refused, UsageError
from backstory.sources.source import PathTime

JAVA: Final = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
# Codes of strftime that `datetime.strptime` does not take, though other implementations do.
LONGER: Final = {"%F": "%Y-%m-%d", "%T": "%H:%M:%S", "%R": "%H:%M", "%D": "%m/%d/%y"}
_JAVA_TOKEN = re.compile(r"'(?P<quoted>[^']*)'|(?P<letters>([A-Za-z])\3*)|(?P<other>[^A-Za-z']+)|'")


def codes(timestamp_format: str) -> str:
    """The format in codes of strptime; letters of Java are translated when the text has no `%`.

    Raises UsageError for letters of Java other than `yyyy MM dd HH mm ss`.
    """
    if "%" in timestamp_format:
        return re.sub("%.", lambda code: LONGER.get(code[0], code[0]), timestamp_format, flags=re.DOTALL)
    return _JAVA_TOKEN.sub(lambda token: _code(token, timestamp_format), timestamp_format)


def check_format(timestamp_format: str) -> None:
    """Raise UsageError if no text can be read by the format."""
    try:
        datetime.strptime("", codes(timestamp_format))  # noqa: DTZ007
    except (ValueError, re.error) as error:
        # An empty text suits no format; that is not the format's fault.
        if "does not match format" not in str(error):
            raise UsageError(
                "event-time",
                f"The time format {timestamp_format!r} is not valid: {error}.",
                "Write it in codes of strftime, such as %Y-%m-%d.",
            ) from None


def path_time(source: PathTime, name: str, paths: Sequence[str]) -> datetime:
    """The time in the first of a file's paths that the pattern is found in; without a zone it is UTC.

    Raises Refused, with the file's name, when there is none or it cannot be read.
    """
    found = next(filter(None, (re.search(source.pattern, path) for path in paths)), None)
    text = found[1] if found else None
    if text is None:
        raise Refused(
            "file-time",
            f"The path of {name} contains no time: the pattern {source.pattern!r} does not match it.",
            "Fix eventTime.pattern, or narrow the glob to files that have a time in their path.",
        )
    try:
        time = datetime.strptime(text, codes(source.timestamp_format))  # noqa: DTZ007
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refused(
            "file-time",
            f"The time {text!r} in the path of {name} is not written as {source.timestamp_format!r}.",
            "Fix eventTime.pattern or eventTime.timestampFormat.",
        ) from None


def _code(token: re.Match[str], timestamp_format: str) -> str:
    if token["quoted"] is not None:
        return token["quoted"] or "'"
    if token["other"] is not None:
        return token["other"]
    if token["letters"] not in JAVA:
        raise UsageError(
            "event-time",
            f"The time format {timestamp_format!r} has {token[0]!r}, which is not supported.",
            f"Use {', '.join(JAVA)}, quote other letters, or write the format in codes of strftime.",
        )
    return JAVA[token["letters"]]
