"""The history's metadata beside the model: `<dataset>.hist.lock.yaml` (section 1.3)."""

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML

from backstory.doors.historize.document import read_state
from backstory.doors.historize.model import Dataset, HistState, Model
from backstory.errors import Failed

HEAD = (
    "# Written by backstory historize: the history's columns, retired ones too. Keep it beside the model.\n"
)


def find_state(dataset: Dataset, folder: Path) -> HistState | None:
    """The state in the lock file of the dataset, or of a name that it had; else that in the model."""
    for name in (dataset.name, *reversed(dataset.former_names)):
        found = read_state(_path(folder, name))
        if found is not None:
            return found
    return dataset.hist_state


def write_state(dataset: Dataset, state: HistState, model: Model, folder: Path) -> None:
    """Write the lock file if it says something else; files of former names go.

    A name that another dataset of the model has by now is that one's, once this one has a file of its own.
    """
    path, text = _path(folder, dataset.name), HEAD + as_yaml(state)
    kept = {each.name for each in model.target_datasets} if path.exists() else {dataset.name}
    try:
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            fresh = path.with_suffix(".new")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
        for name in set(dataset.former_names) - kept:
            _path(folder, name).unlink(missing_ok=True)
    except OSError as stop:
        raise Failed(
            "HIST_STATE", f"{path} cannot be written: {stop.strerror}.", "Make the model's folder writable."
        ) from None


def as_yaml(part: BaseModel) -> str:
    """A part of a model as YAML, always the same text for the same part."""
    sink = StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 1 << 16
    yaml.dump(_plain(part.model_dump(mode="json", by_alias=True)), sink)
    return sink.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.hist.lock.yaml"
