"""Load the datasets of a model: base, history's schema, history (section 3)."""

import re
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import structlog

from backstory.doors.historize.dataset_load import DatasetLoads
from backstory.doors.historize.document import read_model
from backstory.doors.historize.load_request import LoadRequest
from backstory.doors.historize.lock import find_state
from backstory.doors.historize.model import HistState, Model, ModelDataset
from backstory.doors.historize.preparing import prepare_load
from backstory.doors.historize.receipts import HistoryReceipt
from backstory.doors.historize.resolve import HIST, findings, is_hist, namespace_of, resolve
from backstory.doors.historize.run_log import RunLog
from backstory.doors.historize.sync import sync_hist
from backstory.doors.historize.work import Target
from backstory.errors import BackstoryError, UsageError
from backstory.model.instant import optional_instant
from backstory.upkeep.views import SUFFIXES

LONGEST_RUN_ID = 64
# A history and the views of it, by what they are called after their base.
HISTORY = re.compile(f"{HIST}({'|'.join(SUFFIXES)})?$")

events = structlog.get_logger()


def open_model(path: str | Path) -> tuple[Model, Path]:
    """A model, resolved, and the folder that its files are relative to; UsageError for a wrong one.

    What is no error and yet worth a word is told as a warning.
    """
    written, document = read_model(Path(path))
    model = resolve(written, document)
    for finding in findings(model):
        events.warning(finding)
    return model, Path(path).absolute().parent


def datasets_to_load(model: Model, only: str | None) -> list[ModelDataset]:
    """The datasets to load, in the model's order; UsageError for an unknown name."""
    if only is not None and only not in {dataset.name for dataset in model.target_datasets}:
        names = ", ".join(dataset.name for dataset in model.target_datasets)
        raise UsageError("no-dataset", f"The model has no dataset {only!r}.", f"It has {names}.")
    return [
        dataset
        for dataset in model.target_datasets
        if (only is None or dataset.name == only)
        and dataset.historize
        and dataset.active
        and not is_hist(dataset)
    ]


def run_model(
    model: Model,
    folder: Path,
    target: Target,
    asked: LoadRequest,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[HistoryReceipt]:
    """Load the datasets one after the other; one whose input failed is not begun (R28)."""
    datasets = datasets_to_load(model, asked.dataset)
    _refuse_wrong(model, folder, target, asked, datasets)
    batch = str(uuid.uuid4())
    run_id = asked.run_id or batch
    log = RunLog(model, target, batch, run_id, silent=asked.dry_run, clock=clock)
    loads = DatasetLoads(
        model, folder, target, asked, log, run_id, optional_instant(asked.load_timestamp), clock
    )
    receipts: list[HistoryReceipt] = []
    failed: set[str] = set()
    try:
        for dataset in datasets:
            upstream = _upstream(model, dataset) & failed
            receipt = loads.blocked(dataset, min(upstream)) if upstream else loads.receipt(dataset)
            if receipt.status in {"rejected", "failed"}:
                failed.add(_table(model, dataset))
            receipts.append(receipt)
    finally:
        log.write(changed=any(receipt.status != "unchanged" for receipt in receipts))
    return receipts


def _refuse_wrong(
    model: Model, folder: Path, target: Target, asked: LoadRequest, datasets: Sequence[ModelDataset]
) -> None:
    """What would be found in the middle of a batch, found before it: nothing is started then."""
    if asked.run_id is not None and not 0 < len(asked.run_id.strip()) <= LONGEST_RUN_ID:
        told = f"A run id has 1 to {LONGEST_RUN_ID} characters."
        raise UsageError("wrong-run-id", told, "Leave it out for a new one.")
    ratio = asked.max_delete_ratio
    if ratio is not None and not 0 <= ratio <= 1:
        raise UsageError(
            "wrong-ratio", "`max_delete_ratio=` must be between 0 and 1.", "Use 0.1 for a tenth."
        )
    later = {_table(model, dataset).lower() for dataset in datasets}
    for dataset in datasets:
        if (dataset.input or "").lower() in later:
            told = f"{dataset.name} is loaded from {dataset.input}, which is not loaded before it."
            raise UsageError("wrong-model", told, "Datasets are loaded in the model's order: move it down.")
        later.remove(_table(model, dataset).lower())
        _refuse_taken(model, target, dataset, datasets)
        prepare_load(model, dataset, _metadata(model, dataset, folder, target), target.dialect)
    if not datasets:
        events.warning("the model has no dataset that keeps a history")


def _refuse_taken(
    model: Model, target: Target, dataset: ModelDataset, datasets: Sequence[ModelDataset]
) -> None:
    """A name that a dataset has given up is another one's only when the tables have their new names."""
    schema = namespace_of(model, dataset)
    for other in datasets[datasets.index(dataset) + 1 :]:
        if (
            dataset.name in other.former_names
            and target.columns(schema, dataset.hist_name) is not None
            and target.columns(schema, other.hist_name) is None
        ):
            told = f"{other.name} was called {dataset.name} before, and its tables still have that name."
            raise UsageError("wrong-model", told, f"Move {other.name} before {dataset.name}.")


def _metadata(model: Model, dataset: ModelDataset, folder: Path, target: Target) -> HistState:
    """The history's metadata; what is wrong with a lock file is told by the dataset's own load."""
    now = datetime.now(UTC)
    try:
        hist = sync_hist(dataset, find_state(dataset, folder, namespace_of(model, dataset), target), now)
    except BackstoryError:
        hist = sync_hist(dataset, None, now)
    assert hist is not None
    return hist


def _table(model: Model, dataset: ModelDataset) -> str:
    return f"{namespace_of(model, dataset)}.{dataset.name}"


def _bare(name: str | None) -> str:
    """The base table that an input is, or is the history of, or a view of one; names compare without case."""
    return HISTORY.sub("", (name or "").lower())


def _upstream(model: Model, dataset: ModelDataset) -> set[str]:
    """The tables of the model that the dataset is loaded from, and those that they are loaded from."""
    by_table = {_table(model, each).lower(): each for each in model.target_datasets}
    found: set[str] = set()
    names = [dataset.input]
    while names:
        each = by_table.get(_bare(names.pop()))
        if each is not None and _table(model, each) not in found:
            found.add(_table(model, each))
            names.append(each.input)
    return found
