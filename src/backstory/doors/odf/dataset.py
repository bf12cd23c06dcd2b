"""A dataset as its manifest's events make it: the fold of their list (section 1.2)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backstory.documents import Document, DocumentPath, validate
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
from backstory.doors.odf.rules import MANIFEST, refuse_broken_rules

Source = SetPollingSource | AddPushSource


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

    def sources(self) -> list[tuple[DocumentPath, Source]]:
        """The sources, each with its path in the document."""
        events = self.document["content"]["metadata"]
        kept: dict[tuple[str, str], int] = {}
        for number, event in enumerate(events):
            kept[event["kind"], event.get("sourceName", "default")] = number
        found: list[tuple[DocumentPath, Source]] = []
        if self.polling is not None:
            found.append((("content", "metadata", kept["SetPollingSource", "default"]), self.polling))
        for name, source in self.push.items():
            found.append((("content", "metadata", kept["AddPushSource", name]), source))
        return found

    def place(self, path: DocumentPath) -> str:
        """Where a part of the manifest stands, as errors say it."""
        return (self.written or stored(self.document)).place(path)

    def line(self, path: DocumentPath) -> int | None:
        """The line where a part of the manifest stands, if it was read from a file."""
        return self.written.line(path) if self.written else None


def fold(snapshot: DatasetSnapshot, folder: Path, *, known: bool, written: Document | None = None) -> Dataset:
    """The dataset of a manifest; UsageError, with the line in `written`, for what it must not say.

    `known` is whether the warehouse has the dataset already: only such a one has sources to disable.
    """
    document = to_document(snapshot)
    refuse_broken_rules(snapshot, written or stored(document), known=known)
    account, _, name = snapshot.content.name.rpartition("/")
    return Dataset(
        name=name,
        account=account or None,
        folder=folder,
        document=document,
        written=written,
        **_folded(snapshot),
    )


def to_document(snapshot: DatasetSnapshot) -> dict[str, Any]:
    """The manifest as JSON has it, with canonical kinds and no more than was written."""
    return snapshot.model_dump(mode="json", by_alias=True, exclude_unset=True)


def from_document(document: Mapping[str, Any], folder: Path) -> Dataset:
    """The dataset that `to_document` wrote down when the dataset was added."""
    return fold(validate(DatasetSnapshot, stored(document)), folder, known=True)


def stored(document: Mapping[str, Any]) -> Document:
    """A manifest without a file."""
    return Document(f"the manifest of {document['content']['name']}", document, MANIFEST, start=0)


def same_name(one: str, other: str) -> bool:
    """Whether two names are one dataset's: accounts and case tell no datasets apart."""
    return one.rpartition("/")[2].lower() == other.rpartition("/")[2].lower()


def _folded(snapshot: DatasetSnapshot) -> dict[str, Any]:
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
