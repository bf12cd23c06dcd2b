"""The errors of backstory, sorted by who must act.

BackstoryError
├── Failed      1   something outside the input's control, or a bug
├── UsageError  2   the caller: wrong usage, configuration, manifest or model; nothing was started
├── Refused     3   the sender: the input would have corrupted the history; nothing was written
├── Violated    4   the owner of a table: it breaks a law, or a delivery is late
└── TryAgain   75   nobody: the same call may succeed later

A message never shows row values of a Fivetran delivery, keys of a cipher or other secrets. Options stand in
it as arguments of Python in backticks (`option`); the command line prints them as flags.
"""

from collections.abc import Sequence
from traceback import walk_tb
from typing import Any, ClassVar, Final

MAX_KEYS = 10
# The modules of packages that come with extras, and the extras that have each, the smallest first.
EXTRAS: Final = {
    "pyspark": ("spark",),
    "py4j": ("spark",),
    "pandas": ("spark",),
    "ruamel": ("spark", "historize", "odf"),
    "grpc": ("fivetran",),
    "grpc_health": ("fivetran",),
    "grpc_reflection": ("fivetran",),
    "google": ("fivetran",),
    "psycopg": ("historize",),
    "sqlglot": ("historize",),
    "pydantic": ("odf", "historize"),
    "httpx2": ("odf",),
    "shapefile": ("odf",),
    "jinja2": ("explore",),
    "starlette": ("explore",),
    "uvicorn": ("explore",),
}
# What comes from outside may be of any length; errors, answers and lines of logs quote so much of it.
LONGEST = 4096


class BackstoryError(Exception):
    """What went wrong, where, and what to do; never raised itself, only its children are.

    `code` is stable and made for programs, `message` and `remedy` are one sentence each, `keys`
    holds up to ten offending keys. `results` is what a call about several tables found of all of them.
    """

    exit_code: ClassVar[int] = 1
    # What a call about several tables found, where it is raised once all of them were looked at.
    results: Sequence[Any] = ()

    def __init__(self, code: str, message: str, remedy: str = "", keys: Sequence[object] = ()) -> None:
        shown = [shorten(each) if isinstance(each, str) else each for each in list(keys)[:MAX_KEYS]]
        message, remedy = shorten(message), shorten(remedy)
        super().__init__(code, message, remedy, tuple(shown))
        self.code = code
        self.message = message
        self.remedy = remedy
        self.keys = shown

    def __str__(self) -> str:
        return " ".join(part for part in (self.message, self.remedy) if part)

    def __getitem__(self, name: str) -> Any:
        """A field of its JSON: receipts have the fields of theirs as attributes."""
        return self.to_dict()[name]

    def to_dict(self) -> dict[str, Any]:
        """Code, message, keys and remedy, as `--output json` prints them."""
        return {
            "code": self.code,
            "message": self.message,
            "keys": self.keys,
            "remedy": self.remedy,
        }


class Failed(BackstoryError):
    """Something outside the input's control, or a bug."""

    exit_code = 1


class UsageError(BackstoryError):
    """Wrong usage or configuration: nothing was started."""

    exit_code = 2


class Refused(BackstoryError):
    """The input would have corrupted the history: nothing was written."""

    exit_code = 3


class Violated(BackstoryError):
    """A table breaks a law of its layout."""

    exit_code = 4


class TryAgain(BackstoryError):
    """Failed for now: the same call may succeed later."""

    exit_code = 75


def option(name: str, value: object) -> str:
    """An option and its value in the text of an error, such as `` `max_delete_ratio=0.8` ``."""
    return f"`{name}={value!r}`"


def missing_part(fault: Exception) -> UsageError | None:
    """What is said of a package that an installation without its extra lacks; None for any other error."""
    module = (fault.name or "").partition(".")[0] if isinstance(fault, ModuleNotFoundError) else ""
    if module not in EXTRAS:
        return None
    door = _called_door(fault)
    extras = ["spark", door] if any(door in each for each in EXTRAS.values()) else []
    if not any(each in extras for each in EXTRAS[module]):
        extras.append(EXTRAS[module][0])
    return UsageError(
        "no-package",
        f"This needs the package {module}, which is not installed.",
        f'Install it: pip install "backstory[{",".join(extras)}]".',
    )


def _called_door(fault: Exception) -> str:
    """The door that a command called when an error stopped it: with one package a door lacks its others."""
    names = (str(frame.f_globals.get("__name__")).split(".") for frame, _ in walk_tb(fault.__traceback__))
    called = next((each for each in names if each[0] == "backstory" and each[1:2] != ["cli"]), [])
    return called[2] if called[1:2] == ["doors"] else ""


def shorten(text: str) -> str:
    """The text; of one that is too long its beginning and its end, and how long it is."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]} … ({len(text):,} characters) … {text[-half:]}"


def internal_error(bug: Exception) -> BackstoryError:
    """What a door says of an error that nobody foresaw: its kind and its first words, on one line.

    A package that is not installed is no bug, and neither is a path that the system refuses.
    """
    if (part := missing_part(bug)) is not None:
        return part
    if isinstance(bug, OSError) and bug.filename is not None and bug.strerror:
        return Failed(
            "file-failed",
            f"{bug.filename!r} cannot be used: {bug.strerror}.",
            "Check the path, its folder and its permissions.",
        )
    if isinstance(bug, ValueError) and "embedded null" in str(bug):
        return UsageError(
            "bad-option", "A name of a file has a NUL character.", "Remove the character from the name."
        )
    told = f"{type(bug).__name__}: {bug}".partition("\n\tat ")[0]  # the trace that Java's errors have as text
    return Failed(
        "bug",
        f"An internal error: {' '.join(told.split())}",
        f"Run it again with {option('verbose', value=True)} and report what it shows.",
    )
