"""What is lawful in a manifest and yet a mistake, or likely one: lints L1 to L10 (section 2.11), and L11."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

import pyarrow as pa

from backstory.documents import DocumentPath, nearest_name
from backstory.doors.odf.columns import Columns, batch_columns, may_be_event_time, reserved
from backstory.doors.odf.dataset import Dataset, Source
from backstory.doors.odf.literal_secrets import literal_secrets
from backstory.doors.odf.manifest.events import AddPushSource, SetPollingSource
from backstory.doors.odf.manifest.fetch import Url
from backstory.doors.odf.manifest.merge import (
    Append,
    ChangelogStream,
    Ledger,
    Snapshot,
    UpsertStream,
)
from backstory.doors.odf.source_rules import OLD_FIELDS
from backstory.errors import UsageError

REQUIRED: Final = "Remove the Option; in ddlSchema, use NOT NULL."

# What an option that was removed from Csv is replaced by (L9).
REMOVED: Final = {
    "comment": "filter such rows in preprocess",
    "enforceSchema": "columns are matched by name when there is a header",
    "ignoreLeadingWhiteSpace": "use ltrim in preprocess",
    "ignoreTrailingWhiteSpace": "use rtrim in preprocess",
    "emptyValue": "use nullif or coalesce in preprocess",
    "nanValue": "read a text and cast it in preprocess",
    "positiveInf": "read a text and cast it in preprocess",
    "negativeInf": "read a text and cast it in preprocess",
}
# The columns after the preprocess of a source, which stands at a path; None where there is nothing to know.
Output = Callable[[DocumentPath, Source], pa.Schema | None]


class Level(StrEnum):
    """How serious a lint is; an error ends the command."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Lint:
    """A finding: what is wrong or unusual, where (with its line in a file), and what to do."""

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
class _Desk:
    """A source on the desk: all that a lint looks at."""

    dataset: Dataset
    path: DocumentPath
    source: Source
    columns: Columns | None

    def error(self, code: str, path: DocumentPath, message: str, remedy: str) -> Lint:
        """A mistake in a part of the source."""
        return self._lint(code, Level.ERROR, path, message, remedy)

    def warning(self, code: str, path: DocumentPath, message: str, remedy: str) -> Lint:
        """What is likely a mistake."""
        return self._lint(code, Level.WARNING, path, message, remedy)

    def note(self, code: str, path: DocumentPath, message: str, remedy: str) -> Lint:
        """What one should know."""
        return self._lint(code, Level.NOTE, path, message, remedy)

    def _lint(self, code: str, level: Level, place: DocumentPath, message: str, remedy: str) -> Lint:
        path = (*self.path, *place)
        return Lint(code, level, message, self.dataset.line(path), self.dataset.place(path), remedy)

    @property
    def key(self) -> tuple[str, ...]:
        """The primary key; Append has none."""
        merge = self.source.merge
        return () if isinstance(merge, Append) else merge.primary_key


def lints(dataset: Dataset, output: pa.Schema | None = None, source_name: str | None = None) -> list[Lint]:
    """The findings about a dataset, in the order of its sources.

    `output` is the schema of the batch after preprocess, if it is known; without it the declared
    schemas tell what they can. `source_name` looks at that push source only.
    """
    found = []
    for path, source in dataset.sources():
        if source_name is not None and getattr(source, "source_name", None) != source_name:
            continue
        desk = _Desk(dataset, path, source, batch_columns(dataset, source, output))
        found += [lint for look in LOOKS for lint in look(desk)]
    return found + secrets(dataset)


def lints_of(dataset: Dataset, output: Output) -> list[Lint]:
    """The findings about a dataset, whoever tells what its queries make."""
    found = []
    for path, source in dataset.sources():
        found += lints(dataset, output(path, source), getattr(source, "source_name", None))
    return found


def secrets(dataset: Dataset) -> list[Lint]:
    """The lint L11: an error for each secret that stands in the manifest."""
    return [
        Lint(
            "L11",
            Level.ERROR,
            f"the manifest contains {what}, and everybody who may read the table can read it",
            dataset.line(path),
            dataset.place(path),
            "Replace it with ${NAME}, set the variable NAME where backstory runs, and change the secret.",
        )
        for path, what in literal_secrets(dataset.document)
    ]


def refuse_errors(found: Iterable[Lint]) -> None:
    """Raise UsageError for the first error, if there is one; its code is `lint-L2` or the like."""
    for lint in found:
        if lint.level is Level.ERROR:
            raise UsageError(f"lint-{lint.code}", f"{lint.place}: {lint.message}.", lint.remedy)


def _l1(desk: _Desk) -> Iterator[Lint]:
    merge, event_time = desk.source.merge, desk.dataset.vocab.event_time_column
    if not isinstance(merge, Ledger) or merge.event_time_in_key or desk.columns is None:
        return
    if event_time in desk.columns.names and event_time not in merge.primary_key:
        yield desk.warning(
            "L1",
            ("merge", "primaryKey"),
            f"the key leaves out the event time {event_time}, so a second event of the same key is never "
            "added",
            f"Add {event_time} to the key, or remove eventTimeInKey.",
        )


def _l2(desk: _Desk) -> Iterator[Lint]:
    if desk.columns is None:
        return
    vocab = desk.dataset.vocab
    # A dataset's own schema may leave system columns out.
    unsaid = () if desk.columns.of_batch else (vocab.event_time_column, vocab.operation_type_column)
    for path, name in _named(desk):
        if name not in desk.columns.names and name not in unsaid:
            yield desk.error(
                "L2",
                ("merge", *path),
                f"there is no column {name!r} in {desk.columns.origin}",
                nearest_name(name, desk.columns.names),
            )


def _named(desk: _Desk) -> Iterator[tuple[DocumentPath, str]]:
    """The columns that a merge names, and where."""
    merge = desk.source.merge
    yield from ((("primaryKey", number), name) for number, name in enumerate(desk.key))
    if isinstance(merge, Snapshot):
        yield from (
            (("compareColumns", number), name) for number, name in enumerate(merge.compare_columns or ())
        )
    if isinstance(merge, UpsertStream) and merge.sequence_column is not None:
        yield ("sequenceColumn",), merge.sequence_column
    if isinstance(merge, ChangelogStream):  # its rows say themselves what happened
        yield ("kind",), desk.dataset.vocab.operation_type_column


def _l3(desk: _Desk) -> Iterator[Lint]:
    lint = partial(desk.error, "L3")
    if not desk.key and not isinstance(desk.source.merge, Append):
        yield lint(("merge", "primaryKey"), "the primary key is empty", "Name what identifies a row.")
    for number, name in enumerate(desk.key):
        if name in desk.key[:number]:
            yield lint(("merge", "primaryKey", number), f"the key names {name} twice", "Remove one of them.")


def _l4(desk: _Desk) -> Iterator[Lint]:
    merge = desk.source.merge
    for number, name in enumerate((isinstance(merge, Snapshot) and merge.compare_columns) or ()):
        if name in desk.key:
            yield desk.warning(
                "L4",
                ("merge", "compareColumns", number),
                f"compareColumns names the key column {name}, but only rows with the same key are compared",
                f"Remove {name} from compareColumns.",
            )


def _l5(desk: _Desk) -> Iterator[Lint]:
    if isinstance(desk.source, AddPushSource) and isinstance(desk.source.merge, Snapshot):
        yield desk.warning(
            "L5",
            ("merge", "kind"),
            "each push is a whole snapshot: what it leaves out counts as deleted",
            "Push whole copies, or use upsertStream.",
        )


def _l6(desk: _Desk) -> Iterator[Lint]:
    optional = desk.columns.optional if desk.columns else frozenset()
    for number, name in enumerate(desk.key):
        if name in optional:
            yield desk.warning(
                "L6",
                ("merge", "primaryKey", number),
                f"the key column {name} is optional, but a NULL in it refuses the batch",
                REQUIRED,
            )
    event_time = desk.dataset.vocab.event_time_column
    if event_time in optional and event_time not in desk.key:
        yield desk.warning(
            "L6",
            ("merge",),
            f"the event-time column {event_time} is optional; the time of the delivery replaces a NULL",
            REQUIRED,
        )


def _l7(desk: _Desk) -> Iterator[Lint]:
    event_time = desk.dataset.vocab.event_time_column
    field = desk.columns.field(event_time) if desk.columns else None
    if field is not None and not may_be_event_time(field):
        yield desk.error(
            "L7",
            (),
            f"the event-time column {event_time} is {field.type}, which is not a time",
            "Cast it to a date or a timestamp in preprocess.",
        )


def _l8(desk: _Desk) -> Iterator[Lint]:
    source = desk.source
    if not isinstance(source, SetPollingSource) or not isinstance(source.merge, Snapshot):
        return
    if isinstance(source.fetch, Url) and source.fetch.event_time is None:
        yield desk.note(
            "L8",
            ("fetch",),
            "the event time of a snapshot is its Last-Modified time, or the time of the run if it has none",
            "Set eventTime to choose one.",
        )


def _l9(desk: _Desk) -> Iterator[Lint]:
    lint = partial(desk.warning, "L9")
    merge, read = desk.source.merge, desk.source.read
    for name, (attribute, _) in OLD_FIELDS.items():
        if getattr(merge, attribute, None) is not None:
            yield lint(
                ("merge", name), f"{name} belongs to older versions", "Remove it: it repeats the default."
            )
    if read.ddl_schema is not None:
        yield lint(("read", "ddlSchema"), "ddlSchema is the older form of a schema", "Use schema.")
    for name, about in type(read).model_fields.items():
        if name in read.model_fields_set and about.alias in REMOVED:
            option = about.alias
            yield lint(("read", option), f"{option} was removed from Csv", f"Instead: {REMOVED[option]}.")


def _l10(desk: _Desk) -> Iterator[Lint]:
    if desk.columns is None or not desk.columns.of_batch:
        return
    for name in desk.columns.names:
        if name in reserved(desk.dataset.vocab, desk.source.merge):
            yield desk.error(
                "L10",
                desk.columns.path_of(name),
                f"the column {name!r} has the name of a system column",
                "Rename it in preprocess, or rename the system column with setVocab.",
            )


LOOKS: Final = (_l1, _l2, _l3, _l4, _l5, _l6, _l7, _l8, _l9, _l10)
