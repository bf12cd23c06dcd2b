"""Datasets from manifests: files are found, read and checked, and events are folded into a dataset (1.2)."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from backstory.documents import Document, DocumentKind, DocumentPath, read_documents, validate
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
CONTENT: Final = ("content", "metadata")


def check_source(
    source: odf.SetPollingSource | odf.AddPushSource, document: Document, path: DocumentPath
) -> None:
    """Raise UsageError for the first rule that the source breaks."""
    if isinstance(source, odf.SetPollingSource):
        _check_templates(source.fetch, document, (*path, "fetch"))
    _check_read(source.read, document, (*path, "read"))
    if source.preprocess is not None:
        _check_query(source.preprocess, document, (*path, "preprocess"))
    _check_merge(source.merge, document, (*path, "merge"))


def check_schema(schema: DataSchema, document: Document, path: DocumentPath) -> None:
    """Raise UsageError if two columns have the same name."""
    for number, name in _repeats([column.name for column in schema.fields_]):
        raise document.wrong((*path, "fields", number), f"the column {name!r} is named twice.")


def _check_templates(fetch: odf.Fetch, document: Document, path: DocumentPath) -> None:
    for place, text in _template_texts(fetch):
        try:
            templates.check(text)
        except UsageError as broken:
            raise document.wrong((*path, *place), broken.message, broken.remedy, broken.code) from None


def _template_texts(fetch: odf.Fetch) -> Iterator[tuple[DocumentPath, str]]:
    """The strings in a fetch that may contain templates (section 1.1)."""
    match fetch:
        case odf.Url():
            yield ("url",), fetch.url
            yield from (
                (("headers", number, "value"), entry.value) for number, entry in enumerate(fetch.headers)
            )
        case odf.Container():
            yield ("image",), fetch.image
            yield from ((("args", number), text) for number, text in enumerate(fetch.args))
            yield from (
                (("env", number, "value"), entry.value or "") for number, entry in enumerate(fetch.env)
            )
        case odf.Mqtt():
            yield ("password",), fetch.password or ""
        case odf.EthereumLogs():
            yield ("nodeUrl",), fetch.node_url or ""


def _check_read(read: odf.Reader, document: Document, path: DocumentPath) -> None:
    if read.schema_ is not None and read.ddl_schema is not None:
        raise document.wrong(
            (*path, "ddlSchema"), "there are both schema and ddlSchema.", "Keep schema, the newer form."
        )
    if read.schema_ is not None:
        check_schema(read.schema_, document, (*path, "schema"))
    names = []
    for number, column in enumerate(read.ddl_schema or ()):
        try:
            names.append(ddl_field(column).name)
        except UsageError as broken:
            raise document.wrong((*path, "ddlSchema", number), broken.message, broken.remedy) from None
    for number, name in _repeats(names):
        raise document.wrong((*path, "ddlSchema", number), f"the column {name!r} is named twice.")


def _check_query(sql: odf.Sql, document: Document, path: DocumentPath) -> None:
    if sql.engine.lower() not in ENGINES:
        raise document.wrong(
            (*path, "engine"),
            f"the engine {sql.engine!r} is not supported.",
            f"Supported engines are {', '.join(ENGINES)}.",
        )
    if sql.temporal_tables:
        raise document.wrong((*path, "temporalTables"), "only Flink has temporal tables.", "Use a join.")
    if (sql.query is None) == (sql.queries is None):
        problem = "neither query nor queries" if sql.query is None else "both query and queries"
        raise document.wrong(path, f"there is {problem}.", "Use exactly one of them.")
    if sql.queries is not None:
        _check_steps([step.alias for step in sql.queries], document, (*path, "queries"))


def _check_steps(aliases: Sequence[str | None], document: Document, path: DocumentPath) -> None:
    """Check aliases of query steps.

    Exactly one step, the output, has no alias. The other aliases are distinct, and not `input`.
    """
    output = [number for number, alias in enumerate(aliases) if alias is None]
    if not output:
        raise document.wrong(path, "every step has an alias.", "Remove the alias of the output.")
    if len(output) > 1:
        raise document.wrong(
            (*path, output[1]), "two steps have no alias.", "Only the output goes without an alias."
        )
    for number, name in _repeats([INPUT, *(alias or "" for alias in aliases)]):
        raise document.wrong(
            (*path, number - 1, "alias"), f"the table {name!r} exists already.", "Rename one."
        )


def _check_merge(merge: odf.Merge, document: Document, path: DocumentPath) -> None:
    if merge.encoding is EventEncoding.OBSERVED and not isinstance(merge, odf.SnapshotMerge):
        raise document.wrong(
            (*path, "encoding"),
            f"{merge.kind} does not support the encoding observed.",
            "Use op, or remove it.",
        )
    corrects = isinstance(merge, odf.Ledger) and merge.on_conflict is OnConflict.CORRECT
    if corrects and odf.encoding_of(merge) is not EventEncoding.OP:
        raise document.wrong(
            (*path, "onConflict"),
            "corrections are pairs of rows, which only the encoding op can express.",
            "Add encoding: op.",
        )
    if isinstance(merge, odf.SnapshotMerge):
        for name, (attribute, value) in OLD_FIELDS.items():
            if getattr(merge, attribute) not in {None, value}:
                raise document.wrong(
                    (*path, name),
                    f"the column {odf.OBSERVED} holds I, U and D; older snapshots could use others.",
                    f"Remove {name}, or set it to {value}.",
                )


def _repeats(names: Sequence[str]) -> Iterator[tuple[int, str]]:
    return ((number, name) for number, name in enumerate(names) if name in names[:number])


def refuse_broken_rules(snapshot: odf.DatasetSnapshot, document: Document, *, known: bool) -> None:
    """Raise UsageError for the first rule that the manifest breaks."""
    if snapshot.content.kind is odf.DatasetKind.DERIVATIVE:
        raise document.wrong(("content", "kind"), "this is a derivative dataset.", ROOT_ONLY)
    events = snapshot.content.metadata
    for number, event in enumerate(events):
        path = (*CONTENT, number)
        _check_event(event, document, path, known=known)
        if _newest_like(event, events[:number]) == event:
            raise document.wrong(path, "this event repeats an earlier one.", "Remove one of the two.")
    _check_vocab(events, document)
    _check_sources(events, document)


def _check_event(event: Any, document: Document, path: DocumentPath, *, known: bool) -> None:
    match event:
        case odf.SetTransform():
            raise document.wrong(path, "SetTransform belongs to derivative datasets.", ROOT_ONLY)
        case odf.DisablePollingSource() | odf.DisablePushSource() if not known:
            raise document.wrong(
                path, "a new dataset has no source to disable.", f"Remove {event.kind} and its source."
            )
        case odf.SetPollingSource() | odf.AddPushSource():
            check_source(event, document, path)
        case odf.SetDataSchema():
            check_schema(event.schema_, document, (*path, "schema"))


def _newest_like(event: Any, before: Sequence[Any]) -> Any:
    """The newest earlier event about the same topic. Disabling a source has the same topic as the source."""
    about = _topic(event)
    return next((earlier for earlier in reversed(before) if _topic(earlier) == about), None)


def _topic(event: Any) -> tuple[str, str | None]:
    topic = event.kind.removeprefix("Set").removeprefix("Add").removeprefix("Disable")
    return topic, getattr(event, "source_name", None)


def _check_vocab(events: Sequence[Any], document: Document) -> None:
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
                raise document.wrong(
                    (*CONTENT, number, str(odf.SetVocab.model_fields[attribute].alias)),
                    f"{name!r} is the name of another system column.",
                    "Rename one.",
                )
            taken.add(name)


def _check_sources(events: Sequence[Any], document: Document) -> None:
    """Check that there is either one polling source or only push sources.

    All sources must have the same encoding for their table.
    """
    sources = [(number, event) for number, event in enumerate(events) if _is_source(event)]
    if not sources:
        return
    first, first_source = sources[0]
    for number, other in sources[1:]:
        if type(other) is not type(first_source):
            raise document.wrong(
                (*CONTENT, number),
                f"the dataset has {first_source.kind} already, on line {document.line((*CONTENT, first))}; "
                "a dataset has one polling source or push sources.",
                "Split it into two datasets.",
            )
    newest = {event.source_name: number for number, event in sources if isinstance(event, odf.AddPushSource)}
    for number in newest.values():
        other, first_source = events[number], events[min(newest.values())]
        if odf.encoding_of(other.merge) is not odf.encoding_of(first_source.merge):
            raise document.wrong(
                (*CONTENT, number, "merge"),
                f"the push sources {first_source.source_name!r} and {other.source_name!r} write different "
                "columns.",
                "Use the same encoding in both.",
            )


def _is_source(event: Any) -> bool:
    return isinstance(event, odf.SetPollingSource | odf.AddPushSource)


DatasetSource = odf.SetPollingSource | odf.AddPushSource

ENDINGS: Final = (".yaml", ".yml")
KIND: Final = "DatasetSnapshot"
# Distinguishes a broken manifest from broken YAML files of other programs.
MENTION: Final = re.compile(rf"^\W*kind\W+{KIND}\b", re.IGNORECASE | re.MULTILINE)
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
    account: str | None
    folder: Path
    document: Mapping[str, Any] = field(repr=False)
    polling: odf.SetPollingSource | None = None
    push: Mapping[str, odf.AddPushSource] = field(default_factory=dict)
    vocab: odf.SetVocab = field(default_factory=odf.SetVocab)
    schema: DataSchema | None = None
    info: odf.SetInfo | None = None
    license: odf.SetLicense | None = None
    attachments: odf.SetAttachments | None = None
    polling_disabled: bool = False
    disabled_push: frozenset[str] = frozenset()
    written: Document | None = field(default=None, compare=False, repr=False)

    def sources(self) -> list[tuple[DocumentPath, DatasetSource]]:
        """The sources, each with its path in the document."""
        events = self.document["content"]["metadata"]
        numbers: dict[tuple[str, str], int] = {}
        for number, event in enumerate(events):
            numbers[event["kind"], event.get("sourceName", "default")] = number
        sources: list[tuple[DocumentPath, DatasetSource]] = []
        if self.polling is not None:
            sources.append((("content", "metadata", numbers["SetPollingSource", "default"]), self.polling))
        for name, source in self.push.items():
            sources.append((("content", "metadata", numbers["AddPushSource", name]), source))
        return sources

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

    Raises UsageError, with the line in `written`, if the manifest breaks a rule. `known` is whether the
    warehouse has the dataset: only then are there sources to disable.
    """
    document = to_document(snapshot)
    refuse_broken_rules(snapshot, written or manifest_document(document), known=known)
    account, _, name = snapshot.content.name.rpartition("/")
    return Dataset(
        name=name,
        account=account or None,
        folder=folder,
        document=document,
        written=written,
        **_fold_events(snapshot),
    )


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
    """Whether two names refer to the same dataset. Account and case are ignored."""
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
            case odf.SetVocab() | odf.SetInfo() | odf.SetLicense() | odf.SetAttachments():
                fields[event.kind.removeprefix("Set").lower()] = event
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
    return [path for path in _yaml_files(folder) if _holds_manifest(path)]


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
        if "fetch" in event and event["fetch"]["kind"] in DEFAULT_TIMES:
            event["fetch"].setdefault("eventTime", {"kind": _event_time(event["fetch"])})
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


def _event_time(fetch: Mapping[str, Any]) -> str:
    by_ftp = fetch.get("url", "").lower().startswith("ftp:")
    return "FromSystemTime" if by_ftp else DEFAULT_TIMES[fetch["kind"]]


def _is_manifest(tree: Any) -> bool:
    return isinstance(tree, Mapping) and str(tree.get("kind", "")).lower() == KIND.lower()


def _no_manifest(document: Document) -> UsageError:
    kind = document.tree.get("kind") if isinstance(document.tree, Mapping) else None
    why = "this document is not a manifest" if kind is None else f"{str(kind)!r} is not a kind of manifest"
    path = () if kind is None else ("kind",)
    return document.wrong(path, f"{why}.", f"Manifests have kind: {KIND}.")


def _yaml_files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.lower().endswith(ENDINGS) and not name.startswith("."):
                yield Path(place, name)


def _holds_manifest(path: Path) -> bool:
    try:
        return any(_is_manifest(document.tree) for document in read_documents(path, MANIFEST))
    except UsageError:
        return _mentions_one(path)


def _mentions_one(path: Path) -> bool:
    try:
        return MENTION.search(path.read_text(encoding="utf-8", errors="replace")) is not None
    except OSError:
        return False
