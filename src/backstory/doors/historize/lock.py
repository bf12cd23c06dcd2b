"""The history's metadata beside the model, a lock file for each place that it is loaded to (section 1.3)."""

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel
from ruamel.yaml import YAML

from backstory.doors.historize.document import read_state
from backstory.doors.historize.model import HistState, Model, ModelDataset
from backstory.doors.historize.resolve import namespace_of
from backstory.doors.historize.runs import hist_names, names_of
from backstory.doors.historize.work import Target
from backstory.errors import Failed

HEAD = (
    "# Written by backstory historize: the history's columns, retired ones too. Keep it beside the model.\n"
)
ENDING = ".hist.lock.yaml"


def find_state(
    dataset: ModelDataset, folder: Path, schema: str, target: Target | None = None
) -> HistState | None:
    """The state of a history that stands at a target, in a lock file of the dataset or of a former name.

    Else that in the model. A history that is not there has no state, whatever another one of its name
    has. Without a target: that of the only place that is known.
    """
    if target is None:
        found = [path for name in names_of(dataset) for path in folder.glob(f"*.{_file(schema, name)}")]
        single = read_state(found[0]) if len(found) == 1 else None
        return single or _unplaced(dataset, folder) or dataset.hist_state
    stored = next(filter(None, (target.columns(schema, name) for name in hist_names(dataset))), None)
    if stored is None:
        return dataset.hist_state
    for name in names_of(dataset):
        state = read_state(_path(folder, target, schema, name))
        if state is not None:
            return state
    state = _unplaced(dataset, folder)
    if state is None:
        return dataset.hist_state
    # It may be another place's: what the table does not have was never this one's.
    kept = tuple(column for column in state.target_columns if column.name in stored)
    return state.model_copy(update={"target_columns": kept})


def write_state(dataset: ModelDataset, state: HistState, model: Model, folder: Path, target: Target) -> None:
    """Write the lock file if it says something else; files of former names go.

    A name that another dataset of the model has by now is that one's, once this one has a file of its own.
    """
    schema = namespace_of(model, dataset)
    path = _path(folder, target, schema, dataset.name)
    kept = {each.name for each in model.target_datasets} if path.exists() else {dataset.name}
    try:
        if read_state(path) != state:
            fresh = path.with_suffix(".new")
            fresh.write_text(HEAD + as_yaml(state), encoding="utf-8")
            fresh.replace(path)
        for name in set(dataset.former_names) - kept:
            _path(folder, target, schema, name).unlink(missing_ok=True)
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


def _unplaced(dataset: ModelDataset, folder: Path) -> HistState | None:
    """The lock file of an earlier version, whose name has neither place nor schema."""
    states = (read_state(folder / f"{name}{ENDING}") for name in names_of(dataset))
    return next(filter(None, states), None)


def _path(folder: Path, target: Target, schema: str, name: str) -> Path:
    return folder / f"{target.place}.{_file(schema, name)}"


def _file(schema: str, name: str) -> str:
    """What a lock file's name ends with; a schema's name may have letters that a file's cannot."""
    return f"{quote(schema, safe='').replace('.', '%2E')}.{name}{ENDING}"
