"""Lints: valid parts of a manifest that are probably mistakes (L1 to L10, section 2.11), and secrets (L11).

Every user who may read the table can read a secret in its manifest. Secrets belong in environment variables,
which templates insert when the source is fetched (section 1.1).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
from pydantic.alias_generators import to_camel

from backstory.documents import DocumentPath, nearest_name
from backstory.doors.odf.columns import Columns, batch_columns, may_be_event_time, reserved_names
from backstory.doors.odf.manifest import events as odf
from backstory.doors.odf.manifest.dataset import OLD_FIELDS, Dataset, DatasetSource
from backstory.errors import UsageError
from backstory.sources.templates import with_variables_as

# Represents the value of a variable; addresses do not contain this character.
FILLED: Final = "\ue000"
# Names of secret headers, parameters and variables. `accessToken` is matched as two words.
NAMES: Final = re.compile(
    r"(?:^|[-_.])(?:\w*(?:token|secret|password|passwd|passphrase|api[-_]?key)|authorization|cookie"
    r"|credentials?|pwd|sig|signature)$",
    re.IGNORECASE,
)
KEY: Final = re.compile(
    r"(?:^|[-_.])(?:access|account|auth|client|private|secret|subscription)[-_.]?key$", re.IGNORECASE
)
# A parameter named only `key` may contain a word, or the name of a series, such as `key=D.USD.EUR.SP00.A`.
BARE_KEY: Final = re.compile(r"(?=.*\d)[\w-]+")
# Parameters that select the next page of an answer.
PAGES: Final = re.compile(r"(?:page|next|continuation|sync|cursor)[-_.]?token$", re.IGNORECASE)
CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
# Shorter values are assumed to be words, not keys (`key=population`). Shorter users are assumed to be names,
# not tokens.
SHORTEST_KEY, SHORTEST_USER = 16, 8
# Anonymous users of FTP, with any password, and keys that public interfaces issue to everyone.
ANYBODY: Final = {"anonymous", "ftp"}
EVERYBODY: Final = {"demo_key", "demo-key"}

REQUIRED: Final = "Remove the Option; in ddlSchema, use NOT NULL."


def literal_secrets(document: Mapping[str, Any]) -> Iterator[tuple[DocumentPath, str]]:
    """The path and a description of each literal secret in a manifest, including its replaced events."""
    for number, event in enumerate(document["content"]["metadata"]):
        for place, what in _of_fetch(event.get("fetch") or {}):
            yield ("content", "metadata", number, "fetch", *place), what


def _of_fetch(fetch: Mapping[str, Any]) -> Iterator[tuple[DocumentPath, str]]:
    for key in ("url", "nodeUrl"):
        yield from (((key,), what) for what in secrets_in_address(fetch.get(key) or ""))
    for key in ("headers", "env"):
        for number, entry in enumerate(fetch.get(key) or ()):
            if _is_secret(entry["name"], entry.get("value") or ""):
                yield (key, number, "value"), f"the value of {entry['name']}"
    if _is_literal(with_variables_as(FILLED, fetch.get("password") or "")):
        yield ("password",), "a password"


def secrets_in_address(url: str) -> Iterator[str]:
    """Descriptions of the literal secrets in an address."""
    try:
        parts = urlsplit(with_variables_as(FILLED, url))
    except ValueError:
        return  # an invalid address is refused when it is fetched
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    if password:
        if _is_literal(password) and user.lower() not in ANYBODY:
            yield "a password"
    elif len(user) >= SHORTEST_USER and _is_literal(user) and parts.scheme.startswith("http"):
        yield "a user without a password, which is a token"
    for name, value in parse_qsl(parts.query):
        if _is_secret(name, value):
            yield f"the value of {name}"


def _is_secret(name: str, value: str) -> bool:
    name, text = CAMEL.sub("-", name), with_variables_as(FILLED, value)
    if PAGES.search(name) or text.lower() in EVERYBODY:
        return False
    is_long = len(text) >= SHORTEST_KEY
    has_secret_name = NAMES.search(name) or (is_long and KEY.search(name))
    is_bare_key = is_long and name.lower() == "key" and BARE_KEY.fullmatch(text)
    return bool(has_secret_name or is_bare_key) and _is_literal(text)


def _is_literal(text: str) -> bool:
    """Whether a string contains no variables. `Bearer ${TOKEN}` contains one."""
    return bool(text) and FILLED not in text


# Returns the columns after the preprocess of the source at a path, or None if they are unknown.
Output = Callable[[DocumentPath, DatasetSource], pa.Schema | None]


class Level(StrEnum):
    """The severity of a lint. An error ends the command."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Lint:
    """A finding with its message, its place (including the line in a file), and a remedy."""

    code: str
    level: Level
    message: str
    line: int | None
    place: str = ""
    remedy: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The fields, as `--output json` prints them."""
        return {name: getattr(self, name) for name in ("code", "level", "message", "line", "place", "remedy")}


@dataclass(frozen=True, slots=True)
class _LintedSource:
    """A source with its columns, as input to the lints."""

    dataset: Dataset
    source: DatasetSource
    columns: Columns | None

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the primary key, or an empty tuple for Append."""
        return odf.key_of(self.source.merge)


# The place of a finding within its source, its message, and a remedy.
Finding = tuple[DocumentPath, str, str]


def lints(dataset: Dataset, output: Output = lambda *_: None) -> list[Lint]:
    """The lints of a dataset, in the order of its sources.

    `output` returns the columns after preprocess. If these columns are unknown, the declared schemas are
    used.
    """
    findings = []
    for path, source in dataset.sources():
        subject = _LintedSource(dataset, source, batch_columns(dataset, source, output(path, source)))
        findings += [
            _lint(dataset, code, level, (*path, *place), message, remedy)
            for code, (level, look) in CHECKS_OF_LINTS.items()
            for place, message, remedy in look(subject)
        ]
    return findings + secrets(dataset)


def _lint(dataset: Dataset, code: str, level: Level, path: DocumentPath, message: str, remedy: str) -> Lint:
    return Lint(code, level, message, dataset.line(path), dataset.place(path), remedy)


def secrets(dataset: Dataset) -> list[Lint]:
    """The findings of lint L11: an error for each secret in the manifest."""
    why = "and everybody who may read the table can read it"
    remedy = "Replace it with ${NAME}, set the variable NAME where backstory runs, and change the secret."
    return [
        _lint(dataset, "L11", Level.ERROR, path, f"the manifest contains {what}, {why}", remedy)
        for path, what in literal_secrets(dataset.document)
    ]


def refuse_errors(findings: Iterable[Lint]) -> None:
    """Raise UsageError for the first lint that is an error, with a code such as `lint-L2`."""
    for lint in findings:
        if lint.level is Level.ERROR:
            raise UsageError(f"lint-{lint.code}", f"{lint.place}: {lint.message}.", lint.remedy)


def _l1(subject: _LintedSource) -> Iterator[Finding]:
    merge, event_time = subject.source.merge, subject.dataset.vocab.event_time_column
    if not isinstance(merge, odf.Ledger) or merge.event_time_in_key or subject.columns is None:
        return
    if event_time in subject.columns.names and event_time not in merge.primary_key:
        lost = "a second event of the same key is never added"
        yield (
            ("merge", "primaryKey"),
            f"the key leaves out the event time {event_time}, so {lost}",
            f"Add {event_time} to the key, or remove eventTimeInKey.",
        )


def _l2(subject: _LintedSource) -> Iterator[Finding]:
    if subject.columns is None:
        return
    vocab = subject.dataset.vocab
    # A dataset's own schema may omit system columns.
    optional_names = (
        () if subject.columns.of_batch else (vocab.event_time_column, vocab.operation_type_column)
    )
    for path, name in _merge_columns(subject):
        if name not in subject.columns.names and name not in optional_names:
            yield (
                ("merge", *path),
                f"there is no column {name!r} in {subject.columns.origin}",
                nearest_name(name, subject.columns.names),
            )


def _merge_columns(subject: _LintedSource) -> Iterator[tuple[DocumentPath, str]]:
    """The columns named in the merge section, each with its path."""
    merge = subject.source.merge
    yield from ((("primaryKey", number), name) for number, name in enumerate(subject.key))
    if isinstance(merge, odf.SnapshotMerge):
        yield from (
            (("compareColumns", number), name) for number, name in enumerate(merge.compare_columns or ())
        )
    if isinstance(merge, odf.UpsertStream) and merge.sequence_column is not None:
        yield ("sequenceColumn",), merge.sequence_column
    if isinstance(merge, odf.ChangelogStream):  # its rows contain operations
        yield ("kind",), subject.dataset.vocab.operation_type_column


def _l3(subject: _LintedSource) -> Iterator[Finding]:
    if not subject.key and not isinstance(subject.source.merge, odf.Append):
        yield (("merge", "primaryKey"), "the primary key is empty", "Name the columns that identify a row.")
    for number, name in enumerate(subject.key):
        if name in subject.key[:number]:
            yield (("merge", "primaryKey", number), f"the key names {name} twice", "Remove one of them.")


def _l4(subject: _LintedSource) -> Iterator[Finding]:
    merge = subject.source.merge
    for number, name in enumerate((isinstance(merge, odf.SnapshotMerge) and merge.compare_columns) or ()):
        if name in subject.key:
            yield (
                ("merge", "compareColumns", number),
                f"compareColumns names the key column {name}, but only rows with the same key are compared",
                f"Remove {name} from compareColumns.",
            )


def _l5(subject: _LintedSource) -> Iterator[Finding]:
    if isinstance(subject.source, odf.AddPushSource) and isinstance(subject.source.merge, odf.SnapshotMerge):
        yield (
            ("merge", "kind"),
            "each push is a whole snapshot; records that it omits count as deleted",
            "Push whole copies, or use upsertStream.",
        )


def _l6(subject: _LintedSource) -> Iterator[Finding]:
    optional = subject.columns.optional if subject.columns else frozenset()
    for number, name in enumerate(subject.key):
        if name in optional:
            yield (
                ("merge", "primaryKey", number),
                f"the key column {name} is optional, but a NULL in it refuses the batch",
                REQUIRED,
            )
    event_time = subject.dataset.vocab.event_time_column
    if event_time in optional and event_time not in subject.key:
        yield (
            ("merge",),
            f"the event-time column {event_time} is optional; the time of the delivery replaces a NULL",
            REQUIRED,
        )


def _l7(subject: _LintedSource) -> Iterator[Finding]:
    event_time = subject.dataset.vocab.event_time_column
    field = subject.columns.field(event_time) if subject.columns else None
    if field is not None and not may_be_event_time(field):
        yield (
            (),
            f"the event-time column {event_time} is {field.type}, which is not a time",
            "Cast it to a date or a timestamp in preprocess.",
        )


def _l8(subject: _LintedSource) -> Iterator[Finding]:
    source = subject.source
    if not isinstance(source, odf.SetPollingSource) or not isinstance(source.merge, odf.SnapshotMerge):
        return
    if isinstance(source.fetch, odf.Url) and source.fetch.event_time is None:
        yield (
            ("fetch",),
            "the event time of a snapshot is its Last-Modified time, or the time of the run if it has none",
            "Set eventTime to choose one.",
        )


def _l9(subject: _LintedSource) -> Iterator[Finding]:
    merge, read = subject.source.merge, subject.source.read
    for name, (attribute, _) in OLD_FIELDS.items():
        if getattr(merge, attribute, None) is not None:
            yield (("merge", name), f"{name} belongs to older versions", "Remove it: it repeats the default.")
    if read.ddl_schema is not None:
        yield (("read", "ddlSchema"), "ddlSchema is the older form of a schema", "Use schema.")
    for name, (_, instead) in odf.REMOVED.items():
        if name in read.model_fields_set:
            option = to_camel(name)
            yield (("read", option), f"{option} was removed from Csv", f"Instead: {instead}.")


def _l10(subject: _LintedSource) -> Iterator[Finding]:
    if subject.columns is None or not subject.columns.of_batch:
        return
    for name in subject.columns.names:
        if name in reserved_names(subject.dataset.vocab, subject.source.merge):
            yield (
                subject.columns.path_of(name),
                f"the column {name!r} has the name of a system column",
                "Rename it in preprocess, or rename the system column with setVocab.",
            )


# The lints by code, each with its level: a mistake, a probable mistake, or a fact that authors should know.
CHECKS_OF_LINTS: Final[Mapping[str, tuple[Level, Callable[[_LintedSource], Iterator[Finding]]]]] = {
    "L1": (Level.WARNING, _l1),
    "L2": (Level.ERROR, _l2),
    "L3": (Level.ERROR, _l3),
    "L4": (Level.WARNING, _l4),
    "L5": (Level.WARNING, _l5),
    "L6": (Level.WARNING, _l6),
    "L7": (Level.ERROR, _l7),
    "L8": (Level.NOTE, _l8),
    "L9": (Level.WARNING, _l9),
    "L10": (Level.ERROR, _l10),
}
