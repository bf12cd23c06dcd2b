"""Manifests on a small scale, for tests: a few lines of YAML become a dataset, or an error."""

from pathlib import Path
from textwrap import dedent, indent

import pytest

from backstory.doors.odf.manifest.dataset import Dataset, fold, read_manifests
from backstory.errors import UsageError

HEAD = "kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: cities\n  kind: Root\n  metadata:\n"


def manifest(*events: str) -> str:
    """A manifest with these events, each a block of YAML. The first event begins on line 7."""
    lines = ["- " + indent(dedent(event).strip(), "  ").strip() for event in events]
    return HEAD + indent("\n".join(lines) or "[]", "    ") + "\n"


def polling(merge: str = "{kind: append}", **parts: str) -> str:
    """A polling source, one line per part: kind, fetch, read, the other parts, merge."""
    parts = {"fetch": "{kind: url, url: https://a.b/c.csv}", "read": "{kind: csv}"} | parts
    return "\n".join(
        ["kind: setPollingSource", *(f"{name}: {part}" for name, part in parts.items()), f"merge: {merge}"]
    )


def push(merge: str = "{kind: append}", name: str = "default", **parts: str) -> str:
    """A push source, one line per part: kind, name, read, the other parts, merge."""
    parts = {"sourceName": name, "read": "{kind: ndJson}"} | parts
    return "\n".join(
        ["kind: addPushSource", *(f"{key}: {part}" for key, part in parts.items()), f"merge: {merge}"]
    )


def snapshots_of(text: str, folder: Path):
    """The documents and manifests in a string."""
    path = Path(folder, "cities.yaml")
    path.write_text(text, encoding="utf-8")
    return read_manifests(path)


def dataset_of(text: str, folder: Path, *, known: bool = False) -> Dataset:
    """The dataset of a string with one manifest."""
    [dataset] = folded(text, folder, known=known)
    return dataset


def folded(text: str, folder: Path, *, known: bool) -> list[Dataset]:
    """The datasets of a string."""
    return [
        fold(snapshot, Path(folder), known=known, written=document)
        for document, snapshot in snapshots_of(text, folder)
    ]


def refusal(text: str, folder: Path, *, known: bool = False, code: str = "wrong-manifest") -> UsageError:
    """The error of a string. Its message begins after the folder's name."""
    with pytest.raises(UsageError) as refused:
        folded(text, folder, known=known)
    assert refused.value.code == code
    assert refused.value.exit_code == 2
    refused.value.message = refused.value.message.replace(f"{folder}/", "")
    return refused.value
