"""Datasets from manifests: files are found, read and checked, and events are folded into a dataset (1.2)."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from backstory.documents import (
    Document,
    DocumentKind,
    DocumentPart,
    DocumentPath,
    read_documents,
    validate,
)
from backstory.doors.odf.manifest import events as odf
from backstory.doors.odf.manifest.data_schema import DataSchema, ddl_field
from backstory.errors import UsageError
from backstory.sources import templates
from backstory.strategies.events.terms import EventEncoding, OnConflict

ENGINES: Final = ("spark", "datafusion")
INPUT: Final = "input"

# The fields of older snapshots, each with its attribute and the only value that matches the present behaviour
# (R11).
OLD_FIELDS: Final[Mapping[str, tuple[str, str]]] = {
    "observationColumn": ("observation_column", odf.OBSERVED),
    "obsvAdded": ("obsv_added", "I"),
    "obsvChanged": ("obsv_changed", "U"),
    "obsvRemoved": ("obsv_removed", "D"),
}

MANIFEST: Final = DocumentKind("manifest", absent_code="no-manifest", wrong_code="wrong-manifest")
ROOT_ONLY: Final = "Only root datasets are supported; write a derivative one as a query of its inputs."


def check_source(source: odf.SetPollingSource | odf.AddPushSource, part: DocumentPart) -> None:
    """Raise UsageError for the first rule that the source breaks."""
    if isinstance(source, odf.SetPollingSource):
        for path, text in _template_texts(source.fetch):
            with part.at("fetch", *path).locate_errors():
                templates.check(text)
    _check_read(source.read, part.at("read"))
    if source.preprocess is not None:
        _check_query(source.preprocess, part.at("preprocess"))
    _check_merge(source.merge, part.at("merge"))


def _template_texts(fetch: odf.Fetch) -> Iterator[tuple[DocumentPath, str]]:
    """The strings in a fetch that may contain templates (section 1.1)."""
    match fetch:
        case odf.Url():
            yield ("url",), fetch.url
            for number, header in enumerate(fetch.headers):
                yield ("headers", number, "value"), header.value
        case odf.Container():
            yield ("image",), fetch.image
            for number, text in enumerate(fetch.args):
                yield ("args", number), text
            for number, variable in enumerate(fetch.env):
                yield ("env", number, "value"), variable.value or ""
        case odf.Mqtt():
            yield ("password",), fetch.password or ""
        case odf.EthereumLogs():
            yield ("nodeUrl",), fetch.node_url or ""


def _check_read(read: odf.Reader, part: DocumentPart) -> None:
    ddl = part.at("ddlSchema")
    if read.schema_ is not None and read.ddl_schema is not None:
        raise ddl.wrong("there are both schema and ddlSchema.", "Keep schema, the newer form.")
    if read.schema_ is not None:
        _check_schema(read.schema_, part.at("schema"))
    names = []
    for number, column in enumerate(read.ddl_schema or ()):
        with ddl.at(number).locate_errors():
            names.append(ddl_field(column).name)
    _refuse_repeated_columns(names, ddl)


def _check_schema(schema: DataSchema, part: DocumentPart) -> None:
    _refuse_repeated_columns([column.name for column in schema.fields_], part.at("fields"))


def _refuse_repeated_columns(names: Sequence[str], part: DocumentPart) -> None:
    for number, name in _repeats(names):
        raise part.at(number).wrong(f"the column {name!r} is named twice.")


def _check_query(sql: odf.Sql, part: DocumentPart) -> None:
    if sql.engine.lower() not in ENGINES:
        raise part.at("engine").wrong(
            f"the engine {sql.engine!r} is not supported.", f"Supported engines are {', '.join(ENGINES)}."
        )
    if sql.temporal_tables:
        raise part.at("temporalTables").wrong("only Flink has temporal tables.", "Use a join.")
    if (sql.query is None) == (sql.queries is None):
        problem = "neither query nor queries" if sql.query is None else "both query and queries"
        raise part.wrong(f"there is {problem}.", "Use exactly one of them.")
    if sql.queries is not None:
        _check_steps([step.alias for step in sql.queries], part.at("queries"))


def _check_steps(aliases: Sequence[str | None], part: DocumentPart) -> None:
    """Check aliases of query steps.

    Exactly one step, the output, has no alias. The other aliases are distinct, and not `input`.
    """
    output = [number for number, alias in enumerate(aliases) if alias is None]
    if not output:
        raise part.wrong("every step has an alias.", "Remove the alias of the output.")
    if len(output) > 1:
        raise part.at(output[1]).wrong("two steps have no alias.", "Only the output goes without an alias.")
    for number, name in _repeats([INPUT, *(alias or "" for alias in aliases)]):
        raise part.at(number - 1, "alias").wrong(f"the table {name!r} exists already.", "Rename one.")


def _check_merge(merge: odf.Merge, part: DocumentPart) -> None:
    if merge.encoding is EventEncoding.OBSERVED and not isinstance(merge, odf.SnapshotMerge):
        raise part.at("encoding").wrong(
            f"{merge.kind} does not support the encoding observed.", "Use op, or remove it."
        )
    corrects = isinstance(merge, odf.Ledger) and merge.on_conflict is OnConflict.CORRECT
    if corrects and odf.encoding_of(merge) is not EventEncoding.OP:
        raise part.at("onConflict").wrong(
            "corrections are pairs of rows, which only the encoding op can express.", "Add encoding: op."
        )
    if isinstance(merge, odf.SnapshotMerge):
        for name, (attribute, value) in OLD_FIELDS.items():
            if getattr(merge, attribute) not in {None, value}:
                raise part.at(name).wrong(
                    f"the column {odf.OBSERVED} holds I, U and D; older snapshots could use others.",
                    f"Remove {name}, or set it to {value}.",
                )


def _repeats(names: Sequence[str]) -> Iterator[tuple[int, str]]:
    return ((number, name) for number, name in enumerate(names) if name in names[:number])


def refuse_broken_rules(snapshot: odf.DatasetSnapshot, document: Document, *, known: bool) -> None:
    """Raise UsageError for the first rule that the manifest breaks."""
    if snapshot.content.kind is odf.DatasetKind.DERIVATIVE:
        raise document.at("content", "kind").wrong("this is a derivative dataset.", ROOT_ONLY)
    events, parts = snapshot.content.metadata, document.at("content", "metadata")
    for number, event in enumerate(events):
        part = parts.at(number)
        _check_event(event, part, known=known)
        # Disabling a source has the same topic as the source.
        earlier = (other for other in reversed(events[:number]) if _topic(other) == _topic(event))
        if next(earlier, None) == event:
            raise part.wrong("this event repeats an earlier one.", "Remove one of the two.")
    _check_vocab(events, parts)
    _check_sources(events, parts)


def _check_event(event: Any, part: DocumentPart, *, known: bool) -> None:
    match event:
        case odf.SetTransform():
            raise part.wrong("SetTransform belongs to derivative datasets.", ROOT_ONLY)
        case odf.DisablePollingSource() | odf.DisablePushSource() if not known:
            raise part.wrong(
                "a new dataset has no source to disable.", f"Remove {event.kind} and its source."
            )
        case odf.SetPollingSource() | odf.AddPushSource():
            check_source(event, part)
        case odf.SetDataSchema():
            _check_schema(event.schema_, part.at("schema"))


def _topic(event: Any) -> tuple[str, str | None]:
    topic = event.kind.removeprefix("Set").removeprefix("Add").removeprefix("Disable")
    return topic, getattr(event, "source_name", None)


def _check_vocab(events: Sequence[Any], parts: DocumentPart) -> None:
    """Check that system columns have distinct names, including `observed` if a source uses it."""
    observed = any(
        odf.encoding_of(each.merge) is EventEncoding.OBSERVED for each in events if _is_source(each)
    )
    for number, event in enumerate(events):
        if not isinstance(event, odf.SetVocab):
            continue
        taken = {odf.OBSERVED} if observed else set()
        # Default names are taken first, so that the error refers to a name in the document.
        attributes = [name for name in odf.SetVocab.model_fields if name != "kind"]
        for attribute in sorted(attributes, key=event.model_fields_set.__contains__):
            name = getattr(event, attribute)
            if name in taken:
                raise parts.at(number, str(odf.SetVocab.model_fields[attribute].alias)).wrong(
                    f"{name!r} is the name of another system column.", "Rename one."
                )
            taken.add(name)


def _check_sources(events: Sequence[Any], parts: DocumentPart) -> None:
    """Check that there is either one polling source or only push sources.

    All sources must have the same encoding and primary key for their table.
    """
    sources = [(number, event) for number, event in enumerate(events) if _is_source(event)]
    for number, other in sources[1:]:
        first, first_source = sources[0]
        if type(other) is not type(first_source):
            line = parts.document.line(parts.at(first).path)
            raise parts.at(number).wrong(
                f"the dataset has {first_source.kind} already, on line {line}; "
                "a dataset has one polling source or push sources.",
                "Split it into two datasets.",
            )
    newest = {event.source_name: number for number, event in sources if isinstance(event, odf.AddPushSource)}
    for number in newest.values():
        other, first_source = events[number], events[min(newest.values())]
        if odf.encoding_of(other.merge) is not odf.encoding_of(first_source.merge):
            raise parts.at(number, "merge").wrong(
                f"the push sources {first_source.source_name!r} and {other.source_name!r} write different "
                "columns.",
                "Use the same encoding in both.",
            )
        if odf.key_of(other.merge) != odf.key_of(first_source.merge):
            raise parts.at(number, "merge").wrong(
                f"the push sources {first_source.source_name!r} and {other.source_name!r} have different "
                "primary keys.",
                "Use the same primaryKey in both, or split it into two datasets.",
            )


def _is_source(event: Any) -> bool:
    return isinstance(event, odf.SetPollingSource | odf.AddPushSource)


DatasetSource = odf.SetPollingSource | odf.AddPushSource

ENDINGS: Final = (".yaml", ".yml")
KIND: Final = "DatasetSnapshot"
# Distinguishes a broken manifest from broken YAML files of other programs.
KIND_LINE: Final = re.compile(rf"^\W*kind\W+{KIND}\b", re.IGNORECASE | re.MULTILINE)
# The default origin of the event time, by kind of fetch (section 1.4).
DEFAULT_TIMES: Final[Mapping[str, str]] = {"Url": "FromMetadata", "FilesGlob": "FromSystemTime"}


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset as its manifest defines it.

    `name` is the table's name, without the account. `document` is the manifest as JSON, with canonical kinds,
    only the fields that were written, and unfilled templates. Relative paths of a fetch start at `folder`.
    `written` is the YAML document that it was read from, for line numbers.
    """

    name: str
    folder: Path
    document: Mapping[str, Any] = field(repr=False)
    polling: odf.SetPollingSource | None = None
    push: Mapping[str, odf.AddPushSource] = field(default_factory=dict)
    vocab: odf.SetVocab = field(default_factory=odf.SetVocab)
    schema: DataSchema | None = None
    polling_disabled: bool = False
    disabled_push: frozenset[str] = frozenset()
    written: Document | None = field(default=None, compare=False, repr=False)

    def sources(self) -> list[tuple[DocumentPath, DatasetSource]]:
        """The sources, each with its path in the document."""
        events = enumerate(self.document["content"]["metadata"])
        numbers = {e.get("sourceName", "default"): number for number, e in events if "merge" in e}
        sources = self.push if self.polling is None else {"default": self.polling}
        return [(("content", "metadata", numbers[name]), source) for name, source in sources.items()]

    def place(self, path: DocumentPath) -> str:
        """The place of a part of the manifest, for error messages."""
        return (self.written or manifest_document(self.document)).place(path)

    def has_manifest_of(self, other: "Dataset") -> bool:
        """Whether both datasets have the same manifest, including its folder."""
        return self.document == other.document and self.folder == other.folder

    def line(self, path: DocumentPath) -> int | None:
        """The line of a part of the manifest, or None if the manifest was not read from a file."""
        return self.written.line(path) if self.written else None


def fold(
    snapshot: odf.DatasetSnapshot, folder: Path, *, known: bool, written: Document | None = None
) -> Dataset:
    """The dataset of a manifest.

    Raises UsageError, with the line in `written`, if the manifest breaks a rule. `known` is true if the
    warehouse has the dataset, because only then can a source be disabled.
    """
    document = to_document(snapshot)
    refuse_broken_rules(snapshot, written or manifest_document(document), known=known)
    name = snapshot.content.name.rpartition("/")[2]
    return Dataset(name, folder, document, written=written, **_fold_events(snapshot))


def to_document(snapshot: odf.DatasetSnapshot) -> dict[str, Any]:
    """The manifest as JSON, with canonical kinds and only the fields that were written."""
    return snapshot.model_dump(mode="json", by_alias=True, exclude_unset=True)


def from_document(document: Mapping[str, Any], folder: Path) -> Dataset:
    """The dataset from the result of `to_document`, which is stored in the table's properties."""
    return fold(validate(odf.DatasetSnapshot, manifest_document(document)), folder, known=True)


def manifest_document(document: Mapping[str, Any]) -> Document:
    """The document of a manifest that was not read from a file."""
    return Document(f"the manifest of {document['content']['name']}", document, MANIFEST, start=0)


def same_name(first: str, second: str) -> bool:
    """Whether two names refer to the same dataset. The account and the case of letters are ignored."""
    return first.rpartition("/")[2].lower() == second.rpartition("/")[2].lower()


def _fold_events(snapshot: odf.DatasetSnapshot) -> dict[str, Any]:
    """Fold the events into the fields of a Dataset.

    A newer event replaces an older event on the same topic.
    """
    fields: dict[str, Any] = {"push": {}, "disabled_push": frozenset()}
    for event in snapshot.content.metadata:
        match event:
            case odf.SetPollingSource():
                fields |= {"polling": event, "polling_disabled": False}
            case odf.AddPushSource():
                name = event.source_name
                fields["push"] = fields["push"] | {name: event}
                fields["disabled_push"] -= {name}
            case odf.DisablePollingSource():
                fields["polling_disabled"] = True
            case odf.DisablePushSource():
                fields["disabled_push"] |= {event.source_name}
            case odf.SetDataSchema():
                fields["schema"] = event.schema_
            case odf.SetVocab():
                fields["vocab"] = event
    return fields


def read_manifests(path: Path, *, recursive: bool = False) -> list[tuple[Document, odf.DatasetSnapshot]]:
    """The manifests of a file, in order.

    Raises UsageError for the first invalid manifest. A document that is not a manifest is an error, unless
    the file was found in a folder (`recursive`).
    """
    manifests = []
    for document in read_documents(path, MANIFEST):
        if _is_manifest(document.tree):
            manifests.append((document, validate(odf.DatasetSnapshot, document)))
        elif not recursive:
            raise _no_manifest(document)
    if not manifests and not recursive:
        raise UsageError("no-manifest", f"{path} contains no manifest.", f"Begin it with kind: {KIND}.")
    return manifests


def find_manifests(folder: Path) -> list[Path]:
    """The files with manifests in a folder and its subfolders, by name, without hidden files.

    Other files are skipped silently (B64). A broken file that mentions the kind of manifests is included, so
    that `read_manifests` raises its error.
    """
    if not folder.is_dir():
        raise UsageError("no-manifest", f"There is no folder {folder}.", "Name an existing folder.")
    files: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        visible = (name for name in sorted(names) if not name.startswith("."))
        paths = (Path(place, name) for name in visible if name.lower().endswith(ENDINGS))
        files += filter(_holds_manifest, paths)
    return files


def json_schema() -> dict[str, Any]:
    """The JSON Schema of manifests, for editors."""
    schema = odf.DatasetSnapshot.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": KIND}


def resolve_defaults(dataset: Dataset) -> dict[str, Any]:
    """The manifest with every default value filled in. Absent fields without a default stay absent."""
    snapshot = odf.DatasetSnapshot.model_validate(dataset.document)
    document = _without_absent(snapshot.model_dump(mode="json", by_alias=True))
    events = document["content"]["metadata"]
    for event, written in zip(events, snapshot.content.metadata, strict=True):
        if (fetch := event.get("fetch")) and fetch["kind"] in DEFAULT_TIMES:
            by_ftp = fetch.get("url", "").lower().startswith("ftp:")
            kind = "FromSystemTime" if by_ftp else DEFAULT_TIMES[fetch["kind"]]
            fetch.setdefault("eventTime", {"kind": kind})
        if "merge" in event:
            encoding = odf.encoding_of(written.merge)  # type: ignore[union-attr]
            event["merge"] |= {"encoding": encoding.value} if encoding else {}
    if not any(event["kind"] == "SetVocab" for event in events):
        events.append(odf.SetVocab().model_dump(mode="json", by_alias=True))
    return document


def _without_absent(node: Any) -> Any:
    """The document without None values.

    A time zone of None is a value and is kept, and `extra` is unchanged.
    """
    if isinstance(node, Mapping):
        return {
            name: value if name == "extra" else _without_absent(value)
            for name, value in node.items()
            if value is not None or name == "timezone"
        }
    return [_without_absent(item) for item in node] if isinstance(node, list) else node


def _is_manifest(tree: Any) -> bool:
    return isinstance(tree, Mapping) and str(tree.get("kind", "")).lower() == KIND.lower()


def _no_manifest(document: Document) -> UsageError:
    kind = document.tree.get("kind") if isinstance(document.tree, Mapping) else None
    why = "this document is not a manifest" if kind is None else f"{str(kind)!r} is not a kind of manifest"
    part = document.at(*(() if kind is None else ("kind",)))
    return part.wrong(f"{why}.", f"Manifests have kind: {KIND}.")


def _holds_manifest(path: Path) -> bool:
    try:
        return any(_is_manifest(document.tree) for document in read_documents(path, MANIFEST))
    except UsageError:
        with suppress(OSError):
            return KIND_LINE.search(path.read_text(encoding="utf-8", errors="replace")) is not None
        return False
