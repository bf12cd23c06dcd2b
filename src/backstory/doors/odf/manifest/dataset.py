"""A dataset as its manifest's events make it: the fold of their list (section 1.2).

Files of manifests: read, found in a folder, and shown with all their defaults.
"""

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


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a manifest says of a dataset.

    `name` is the table's name, without the account before it. `document` is the manifest as JSON has
    it: canonical kinds, only what was written, templates unfilled. Relative paths of a fetch start at
    `folder`. `written` is the YAML that it was read from, for the lines of lints.
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
        kept: dict[tuple[str, str], int] = {}
        for number, event in enumerate(events):
            kept[event["kind"], event.get("sourceName", "default")] = number
        found: list[tuple[DocumentPath, DatasetSource]] = []
        if self.polling is not None:
            found.append((("content", "metadata", kept["SetPollingSource", "default"]), self.polling))
        for name, source in self.push.items():
            found.append((("content", "metadata", kept["AddPushSource", name]), source))
        return found

    def place(self, path: DocumentPath) -> str:
        """Where a part of the manifest stands, as errors say it."""
        return (self.written or manifest_document(self.document)).place(path)

    def line(self, path: DocumentPath) -> int | None:
        """The line where a part of the manifest stands, if it was read from a file."""
        return self.written.line(path) if self.written else None


def fold(snapshot: DatasetSnapshot, folder: Path, *, known: bool, written: Document | None = None) -> Dataset:
    """The dataset of a manifest; UsageError, with the line in `written`, for what it must not say.

    `known` is whether the warehouse has the dataset already: only such a one has sources to disable.
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
    """The manifest as JSON has it, with canonical kinds and no more than was written."""
    return snapshot.model_dump(mode="json", by_alias=True, exclude_unset=True)


def from_document(document: Mapping[str, Any], folder: Path) -> Dataset:
    """The dataset that `to_document` wrote down when the dataset was added."""
    return fold(validate(DatasetSnapshot, manifest_document(document)), folder, known=True)


def manifest_document(document: Mapping[str, Any]) -> Document:
    """A manifest without a file."""
    return Document(f"the manifest of {document['content']['name']}", document, MANIFEST, start=0)


def same_name(one: str, other: str) -> bool:
    """Whether two names are one dataset's: accounts and case tell no datasets apart."""
    return one.rpartition("/")[2].lower() == other.rpartition("/")[2].lower()


def _fold_events(snapshot: DatasetSnapshot) -> dict[str, Any]:
    """What is left when all events have happened: of two that say the same thing, the newer one."""
    found: dict[str, Any] = {"push": {}, "disabled_push": frozenset()}
    for event in snapshot.content.metadata:
        match event:
            case SetPollingSource():
                found |= {"polling": event, "polling_disabled": False}
            case AddPushSource():
                name = event.source_name
                found["push"] = found["push"] | {name: event}
                found["disabled_push"] -= {name}
            case DisablePollingSource():
                found["polling_disabled"] = True
            case DisablePushSource():
                found["disabled_push"] |= {event.source_name}
            case SetDataSchema():
                found["schema"] = event.schema_
            case SetVocab() | SetInfo() | SetLicense() | SetAttachments():
                found[event.kind.removeprefix("Set").lower()] = event
    return found


ENDINGS: Final = (".yaml", ".yml")
KIND: Final = "DatasetSnapshot"
# Tells a broken manifest from broken YAML of other programs.
MENTION: Final = re.compile(rf"^\W*kind\W+{KIND}\b", re.IGNORECASE | re.MULTILINE)


def read_manifests(path: Path, *, recursive: bool = False) -> list[tuple[Document, DatasetSnapshot]]:
    """The manifests of a file, in its order; UsageError for the first one that is wrong.

    A document that is no manifest is an error too, unless the file was found in a folder (`recursive`).
    """
    found = []
    for document in read_documents(path, MANIFEST):
        if _is_manifest(document.tree):
            found.append((document, validate(DatasetSnapshot, document)))
        elif not recursive:
            raise _no_manifest(document)
    if not found and not recursive:
        raise UsageError("no-manifest", f"{path} contains no manifest.", f"Begin it with kind: {KIND}.")
    return found


def find_manifests(folder: Path) -> list[Path]:
    """The files of a folder and of those in it that hold manifests, by name; hidden ones are left out.

    Files of other programs are skipped without a word (B64). A broken file is one of them, unless it
    says that it holds a manifest; then `read_manifests` tells what is wrong.
    """
    if not folder.is_dir():
        raise UsageError("no-manifest", f"There is no folder {folder}.", "Name an existing folder.")
    return [path for path in _yaml_files(folder) if _holds_manifest(path)]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of manifests, for editors."""
    schema = DatasetSnapshot.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": KIND}


def resolve_defaults(dataset: Dataset) -> dict[str, Any]:
    """The manifest with every default filled in; what has no default and is not there stays out."""
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
    """The document without what is not there; no time zone is one, too, and extras stay as they are."""
    if isinstance(node, Mapping):
        return {
            name: value if name == "extra" else _without_absent(value)
            for name, value in node.items()
            if value is not None or name == "timezone"
        }
    return [_without_absent(each) for each in node] if isinstance(node, list) else node


# Where the event time comes from if a fetch does not say (section 1.4).
DEFAULT_TIMES: Final[Mapping[str, str]] = {"Url": "FromMetadata", "FilesGlob": "FromSystemTime"}


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
