"""The errors of backstory, grouped by who must act.

BackstoryError
├── Failed      1   something outside the input's control, or a bug
├── UsageError  2   the caller: wrong usage, configuration, manifest or model; nothing was started
├── Refused     3   the sender: the input would have corrupted the history; nothing was written
├── Violated    4   the owner of a table: it breaks a law, or a delivery is late
└── TryAgain   75   nobody: the same call may succeed later

A message never contains values from rows of a Fivetran delivery, encryption keys or other secrets. It names
options as Python arguments in backticks (`option`), and the command line prints them as flags.
"""

from collections.abc import Sequence
from traceback import walk_tb
from typing import Any, ClassVar, Final, Self

MAX_KEYS = 10
# The modules of optional packages, and the extras that install them, the smallest extra first.
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
# The largest number of characters that errors, answers and log lines quote from outside.
LONGEST = 4096


class BackstoryError(Exception):
    """The base of all errors. Only its subclasses are raised.

    `code` is stable, for programs. `message` and `remedy` are one sentence each, and `keys` has up to ten of
    the keys at fault. `results` has the results of all tables, if a call was about several tables.
    """

    exit_code: ClassVar[int] = 1
    # Set by calls that raise only after they have worked on all of their tables.
    results: Sequence[Any] = ()

    def __init__(self, code: str, message: str, remedy: str = "", keys: Sequence[object] = ()) -> None:
        shown = [shorten(key) if isinstance(key, str) else key for key in list(keys)[:MAX_KEYS]]
        message, remedy = shorten(message), shorten(remedy)
        super().__init__(code, message, remedy, tuple(shown))
        self.code = code
        self.message = message
        self.remedy = remedy
        self.keys = shown

    def __str__(self) -> str:
        return " ".join(part for part in (self.message, self.remedy) if part)

    def __getitem__(self, name: str) -> Any:
        """A field of `to_dict`."""
        return self.to_dict()[name]

    def reword(self, message: str | None = None, remedy: str | None = None) -> Self:
        """The same error with another message or remedy. None keeps the current one."""
        texts = (self.message if message is None else message, self.remedy if remedy is None else remedy)
        return type(self)(self.code, *texts, self.keys)

    def to_dict(self) -> dict[str, Any]:
        """Code, message, keys and remedy, as in `--output json`."""
        return {"code": self.code, "message": self.message, "keys": self.keys, "remedy": self.remedy}


class Failed(BackstoryError):
    """A failure that the input did not cause, or a bug."""

    exit_code = 1


class UsageError(BackstoryError):
    """Wrong usage or configuration. Nothing was started."""

    exit_code = 2


def bad_option(message: str, remedy: str) -> UsageError:
    """The error for an option that is invalid, or that conflicts with another option."""
    return UsageError("bad-option", message, remedy)


class Refused(BackstoryError):
    """The input would have corrupted the history. Nothing was written."""

    exit_code = 3


class Violated(BackstoryError):
    """A table breaks a law of its layout."""

    exit_code = 4


class TryAgain(BackstoryError):
    """A temporary failure. The same call may succeed later."""

    exit_code = 75


def option(name: str, value: object) -> str:
    """An option and its value for an error, such as `` `max_delete_ratio=0.8` ``."""
    return f"`{name}={value!r}`"


def missing_part(fault: Exception) -> UsageError | None:
    """The error for a missing optional package, with the extras to install, or None for any other error."""
    module = (fault.name or "").partition(".")[0] if isinstance(fault, ModuleNotFoundError) else ""
    if module not in EXTRAS:
        return None
    door = _called_door(fault)
    extras = ["spark", door] if any(door in names for names in EXTRAS.values()) else []
    if not any(extra in extras for extra in EXTRAS[module]):
        extras.append(EXTRAS[module][0])
    return UsageError(
        "no-package",
        f"This needs the package {module}, which is not installed.",
        f'Install it: pip install "backstory[{",".join(extras)}]".',
    )


def _called_door(fault: Exception) -> str:
    """The door that the command called, found in the error's trace, or an empty string if it called no door.

    If one package of a door is missing, its other packages are missing too. The door's extra installs them
    all.
    """
    modules = (str(frame.f_globals.get("__name__")).split(".") for frame, _ in walk_tb(fault.__traceback__))
    called = next((names for names in modules if names[0] == "backstory" and names[1:2] != ["cli"]), [])
    return called[2] if called[1:2] == ["doors"] else ""


def shorten(text: str) -> str:
    """The string, or if it exceeds `LONGEST` characters, its beginning, its length and its end."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]} … ({len(text):,} characters) … {text[-half:]}"


def internal_error(bug: Exception) -> BackstoryError:
    """The error for an unexpected exception, with its class and message on one line.

    Missing optional packages, file errors of the operating system and impossible file names are not bugs, and
    have their own errors.
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
            "bad-option", "A file name has a NUL character.", "Remove the character from the name."
        )
    text = f"{type(bug).__name__}: {bug}".partition("\n\tat ")[0]  # without Java's trace
    return Failed(
        "bug",
        f"An internal error: {' '.join(text.split())}",
        f"Run it again with {option('verbose', value=True)} and report its output.",
    )
