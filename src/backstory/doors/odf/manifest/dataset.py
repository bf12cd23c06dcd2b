"""Datasets from manifests: files are found and read, and events are folded into a dataset (section 1.2)."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from backstory.documents import Document, DocumentPath, read_documents, validate
from backstory.doors.odf.manifest.data_schema import DataSchema
from backstory.doors.odf.manifest.events import (
    AddPushSource,
    DatasetSnapshot,
    DisablePollingSource,
    DisablePushSource,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetVocab,
)
from backstory.doors.odf.manifest.merge import encoding_of
from backstory.doors.odf.manifest.rules import MANIFEST, refuse_broken_rules
from backstory.errors import UsageError

DatasetSource = SetPollingSource | AddPushSource

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
    polling: SetPollingSource | None = None
    push: Mapping[str, AddPushSource] = field(default_factory=dict)
    vocab: SetVocab = field(default_factory=SetVocab)
    schema: DataSchema | None = None
    info: SetInfo | None = None
    license: SetLicense | None = None
    attachments: SetAttachments | None = None
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

    def line(self, path: DocumentPath) -> int | None:
        """The line of a part of the manifest, or None if the manifest was not read from a file."""
        return self.written.line(path) if self.written else None


def fold(snapshot: DatasetSnapshot, folder: Path, *, known: bool, written: Document | None = None) -> Dataset:
    """The dataset of a manifest.

    Raises UsageError, with the line in `written`, if the manifest breaks a rule. `known` is whether the
    warehouse has the dataset: only then there are sources to disable.
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


def to_document(snapshot: DatasetSnapshot) -> dict[str, Any]:
    """The manifest as JSON, with canonical kinds and only the fields that were written."""
    return snapshot.model_dump(mode="json", by_alias=True, exclude_unset=True)


def from_document(document: Mapping[str, Any], folder: Path) -> Dataset:
    """The dataset from the result of `to_document`, which is stored in the table's properties."""
    return fold(validate(DatasetSnapshot, manifest_document(document)), folder, known=True)


def manifest_document(document: Mapping[str, Any]) -> Document:
    """The document of a manifest that was not read from a file."""
    return Document(f"the manifest of {document['content']['name']}", document, MANIFEST, start=0)


def same_name(first: str, second: str) -> bool:
    """Whether two names refer to the same dataset. Account and case are ignored."""
    return first.rpartition("/")[2].lower() == second.rpartition("/")[2].lower()


def _fold_events(snapshot: DatasetSnapshot) -> dict[str, Any]:
    """Fold the events into the fields of a Dataset.

    A newer event replaces an older event of the same topic.
    """
    fields: dict[str, Any] = {"push": {}, "disabled_push": frozenset()}
    for event in snapshot.content.metadata:
        match event:
            case SetPollingSource():
                fields |= {"polling": event, "polling_disabled": False}
            case AddPushSource():
                name = event.source_name
                fields["push"] = fields["push"] | {name: event}
                fields["disabled_push"] -= {name}
            case DisablePollingSource():
                fields["polling_disabled"] = True
            case DisablePushSource():
                fields["disabled_push"] |= {event.source_name}
            case SetDataSchema():
                fields["schema"] = event.schema_
            case SetVocab() | SetInfo() | SetLicense() | SetAttachments():
                fields[event.kind.removeprefix("Set").lower()] = event
    return fields


def read_manifests(path: Path, *, recursive: bool = False) -> list[tuple[Document, DatasetSnapshot]]:
    """The manifests of a file, in order.

    Raises UsageError for the first invalid manifest. A document that is not a manifest is an error, unless
    the file was found in a folder (`recursive`).
    """
    manifests = []
    for document in read_documents(path, MANIFEST):
        if _is_manifest(document.tree):
            manifests.append((document, validate(DatasetSnapshot, document)))
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
    schema = DatasetSnapshot.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": KIND}


def resolve_defaults(dataset: Dataset) -> dict[str, Any]:
    """The manifest with every default value filled in. Absent fields without a default stay absent."""
    snapshot = DatasetSnapshot.model_validate(dataset.document)
    document = _without_absent(snapshot.model_dump(mode="json", by_alias=True))
    events = document["content"]["metadata"]
    for event, written in zip(events, snapshot.content.metadata, strict=True):
        if "fetch" in event and event["fetch"]["kind"] in DEFAULT_TIMES:
            event["fetch"].setdefault("eventTime", {"kind": _event_time(event["fetch"])})
        if "merge" in event:
            encoding = encoding_of(written.merge)  # type: ignore[union-attr]
            event["merge"] |= {"encoding": encoding.value} if encoding else {}
    if not any(event["kind"] == "SetVocab" for event in events):
        events.append(SetVocab().model_dump(mode="json", by_alias=True))
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
