"""Files of manifests: read, found in a folder, and shown with all their defaults."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from backstory.documents import Document, read_documents, validate
from backstory.doors.odf.dataset import Dataset
from backstory.doors.odf.manifest.events import DatasetSnapshot, SetVocab
from backstory.doors.odf.manifest.merge import encoding_of
from backstory.doors.odf.rules import MANIFEST
from backstory.errors import UsageError

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


def resolved(dataset: Dataset) -> dict[str, Any]:
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
