"""Load a model's datasets: base, history schema and history, with retries and receipts (section 3)."""

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from traceback import format_exc
from typing import Final

import structlog

from backstory.doors.historize.hist_state import find_state, sync_hist, write_state
from backstory.doors.historize.load import adopt_state, delta_cutoff, prepare_load, refuse_swaps
from backstory.doors.historize.model import HistState, Model, ModelDataset, StateLabels
from backstory.doors.historize.receipts import (
    HistoryReceipt,
    LoadOutcome,
    LoadRequest,
    refusal,
    stored_receipt,
)
from backstory.doors.historize.resolve import (
    HIST,
    findings,
    is_hist,
    namespace_of,
    read_model,
    resolve,
    schema_of,
)
from backstory.doors.historize.runs import LoadRun, RegisteredRun, RunLog, Target, base_names, hist_names
from backstory.doors.historize.stage import stage_of
from backstory.engine.deliver import retry
from backstory.errors import BackstoryError, Failed, Refused, TryAgain, UsageError, internal_error
from backstory.formats.memory import translate_disk_errors
from backstory.model.instant import iso
from backstory.upkeep.model_histories import SUFFIXES

CLOCK_LAG = timedelta(seconds=1)

# Parts of the error messages of Spark, DuckDB and PostgreSQL for a number that a decimal type cannot hold.
MISFITS: Final = (
    "CAST_INVALID_INPUT",
    "CAST_OVERFLOW",
    "NUMERIC_VALUE_OUT_OF_RANGE",
    "Conversion Error",
    "numeric field overflow",
)
events = structlog.get_logger()


@dataclass(frozen=True)
class DatasetLoads:
    """The loads of a batch, one dataset at a time."""

    model: Model
    folder: Path
    target: Target
    request: LoadRequest
    log: RunLog
    run_id: str
    instant: datetime | None
    clock: Callable[[], datetime]

    def load(self, dataset: ModelDataset) -> HistoryReceipt:
        """Load a dataset. After a conflict, the load is retried with the same instant."""
        began = self.clock()
        run: LoadRun | None = None
        try:
            with (
                translate_disk_errors(dataset.name),
                self.target.hold(self._schema(dataset), dataset, self.run_id),
            ):
                known = (
                    self.target.find_run(self._schema(dataset), dataset, self.run_id)
                    if self.request.run_id
                    else None
                )
                self._refuse_other_instant(known)
                if known and known.receipt:
                    return replace(stored_receipt(known.receipt), dataset=dataset.name)
                run = current = self._plan_run(dataset, known, began)

                def start_next_attempt(busy: TryAgain) -> None:
                    nonlocal run, current
                    self.log.add_failure(dataset, current, began, busy)
                    run = current = replace(current, attempt=current.attempt + 1)

                return retry(lambda: self._load(current), start_next_attempt)
        except BackstoryError as error:
            return self._refuse(dataset, run, began, error)
        except Exception as bug:  # the other datasets still run
            events.debug("an internal error", trace=format_exc())  # without the values of variables
            return self._refuse(dataset, run, began, internal_error(bug))

    def _refuse(
        self, dataset: ModelDataset, run: LoadRun | None, began: datetime, error: BackstoryError
    ) -> HistoryReceipt:
        error = _as_hash_refusal(dataset, error)
        self.log.add_failure(dataset, run, began, error)
        return refusal(dataset.name, self.run_id, run.instant if run else None, error)

    def _schema(self, dataset: ModelDataset) -> str:
        return namespace_of(self.model, dataset)

    def skip(self, dataset: ModelDataset, upstream: str) -> HistoryReceipt:
        """The receipt of a dataset that is skipped because the load of its input failed."""
        error = Refused(
            "BASE_NOT_LOADED",
            f"{dataset.name} is loaded from {upstream}, whose own load failed.",
            "Fix that load and run again.",
        )
        self.log.add_blocked(dataset, upstream)
        return refusal(dataset.name, self.run_id, None, error)

    def _refuse_other_instant(self, known: RegisteredRun | None) -> None:
        if known and self.instant and known.load_timestamp != self.instant:
            raise Refused(
                "OTHER_LOAD_TIMESTAMP",
                f"The run {self.run_id} already has the load timestamp {iso(known.load_timestamp)}.",
                "Leave out the timestamp, or use another run id.",
            )

    def _plan_run(self, dataset: ModelDataset, known: RegisteredRun | None, began: datetime) -> LoadRun:
        instant = known.load_timestamp if known else self.instant or self._allocate_instant(dataset)
        return LoadRun(
            dataset,
            self._schema(dataset),
            self.run_id,
            instant,
            began,
            attempt=known.attempt + 1 if known else 1,
            stage=stage_of(dataset, self.folder),
            cutoff=delta_cutoff(self.model, dataset, instant),
            skip_base=self.request.skip_base,
            dry_run=self.request.dry_run,
        )

    def _allocate_instant(self, dataset: ModelDataset) -> datetime:
        """The current time as the load's instant.

        If the current time is at most a second before the history's newest time, the instant is just after
        that newest time.
        """
        now = self.clock()
        schema = self._schema(dataset)
        newest = self.target.newest_instant(schema, hist_names(dataset))
        if newest is None or newest < now:
            return now
        if newest - now > CLOCK_LAG:
            raise Refused(
                "NON_MONOTONIC_TIMESTAMP",
                f"The clock is at {iso(now)}, but the newest time in {dataset.hist_name} is {iso(newest)}.",
                "Correct the clock, or use `load_timestamp=TIME`.",
            )
        return newest + timedelta(microseconds=1)

    def _load(self, run: LoadRun) -> HistoryReceipt:
        dataset = self._override_rules(run.dataset)
        stored = find_state(dataset, self.folder, run.schema, self.target)
        state = stored or self._adopt_state(dataset)
        refuse_swaps(dataset)
        hist = sync_hist(dataset, state, run.instant)
        assert hist is not None
        run, hist = self._settle_changes(replace(run, dataset=dataset), state, hist)
        load = prepare_load(self.model, dataset, hist, self.target.dialect)
        if not run.dry_run:
            self.target.register(run)

        def make_receipt(outcome: LoadOutcome) -> HistoryReceipt:
            return HistoryReceipt(
                dataset.name,
                run.run_id,
                iso(run.instant),
                outcome.status,
                outcome.counts,
                list(outcome.schema_changes),
                keys=outcome.keys if run.dry_run else None,
                warnings=outcome.warnings,
            )

        outcome = self.target.load(load, run, make_receipt)
        receipt = make_receipt(outcome)
        if not run.dry_run:
            try:
                write_state(dataset, hist, self.model, self.folder, self.target)
            except BackstoryError as error:  # the load is already committed
                events.warning(str(error))
            self.log.add_success(dataset, run, outcome, receipt)
        return receipt

    def _override_rules(self, dataset: ModelDataset) -> ModelDataset:
        rules = dataset.historization
        if self.request.allow_empty:
            rules = rules.model_copy(update={"allow_empty_snapshot": True})
        if self.request.max_delete_ratio is not None:
            rules = rules.model_copy(update={"max_delete_ratio": self.request.max_delete_ratio})
        return dataset.model_copy(update={"historization": rules})

    def _adopt_state(self, dataset: ModelDataset) -> HistState | None:
        """Derive, from its table, the state of a history that has no lock file."""
        schema = self._schema(dataset)
        for name in base_names(dataset):
            stored = self.target.columns(schema, f"{name}_hist")
            if stored is not None:
                return adopt_state(dataset, name, stored, self.target.dialect)
        return None

    def _settle_changes(
        self, run: LoadRun, state: HistState | None, hist: HistState
    ) -> tuple[LoadRun, HistState]:
        """The run and the metadata after a change to the hash profile or the labels.

        Raises Refused if the option for the change is missing.
        """
        profile = schema_of(self.model, run.dataset).hash_profile
        before = state.hash_profile if state else None
        if before not in {None, profile} and self.request.hash_change not in {"version", "rehash"}:
            raise Refused(
                "HASH_DEFINITION_CHANGED",
                f"{hist.target_dataset_name} was hashed by {before}, but the model specifies {profile}.",
                "Use `hash_change=version` for a new version of every record, or `hash_change=rehash` for "
                "none.",
            )
        # A rehash is also used for a column that was added or removed, because this changes every hash.
        rehash = self.request.hash_change == "rehash" and state is not None
        partly = run.dataset.incremental_strategy == "merge" and not run.skip_base
        run = replace(run, rehash=rehash, rehash_base=partly and (rehash or before not in {None, profile}))
        labels, stored = _stored_labels(run.dataset.historization.state_labels), None
        if state is not None:
            stored = _stored_labels(state.state_labels)
        if stored not in {None, labels}:
            if not self.request.relabel:
                raise Refused(
                    "LABELS_CHANGED",
                    f"{hist.target_dataset_name} has state labels that differ from the model's.",
                    "Use `relabel=True` to change the stored ones.",
                )
            run = replace(run, relabel=stored)
        update = {"hash_profile": profile, "state_labels": run.dataset.historization.state_labels}
        return run, hist.model_copy(update=update)


def _stored_labels(labels: StateLabels | None) -> StateLabels:
    return labels if labels and labels.mode == "stored" else StateLabels()


def _as_hash_refusal(dataset: ModelDataset, error: BackstoryError) -> BackstoryError:
    """The error HASH_VALUE for a number that a `hash_as` type cannot hold. Any other error is unchanged."""
    columns = [each.name for each in dataset.target_columns if each.hash_as and each.active]
    misfit = isinstance(error, Failed) and any(words in error.message for words in MISFITS)
    if not columns or not misfit:
        return error
    return Refused(
        "HASH_VALUE",
        f"{dataset.name} has a number in {' or '.join(columns)} that its hash_as cannot hold.",
        "Nothing was written; widen hash_as, set hash: false, or fix the number at its source.",
        columns,
    )


LONGEST_RUN_ID = 64
# The suffixes of a history and of its views, which follow the name of the base.
HISTORY = re.compile(f"{HIST}({'|'.join(SUFFIXES)})?$")


def open_model(path: str | Path) -> tuple[Model, Path]:
    """A resolved model, and the folder that its files are relative to.

    Raises UsageError for a wrong model. Findings that are not errors are logged as warnings.
    """
    written, document = read_model(Path(path))
    model = resolve(written, document)
    for finding in findings(model):
        events.warning(finding)
    return model, Path(path).absolute().parent


def datasets_to_load(model: Model, only: str | None) -> list[ModelDataset]:
    """The datasets to load, in the model's order. Raises UsageError for an unknown name."""
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
    request: LoadRequest,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[HistoryReceipt]:
    """Load the datasets one after the other. A dataset is skipped if its input failed (R28)."""
    datasets = datasets_to_load(model, request.dataset)
    _refuse_wrong_request(model, folder, target, request, datasets)
    batch = str(uuid.uuid4())
    run_id = request.run_id or batch
    log = RunLog(model, target, batch, run_id, silent=request.dry_run, clock=clock)
    loads = DatasetLoads(model, folder, target, request, log, run_id, request.load_timestamp, clock)
    receipts: list[HistoryReceipt] = []
    failed: set[str] = set()
    try:
        for dataset in datasets:
            upstream = _upstream(model, dataset) & failed
            receipt = loads.skip(dataset, min(upstream)) if upstream else loads.load(dataset)
            if receipt.status in {"rejected", "failed"}:
                failed.add(_table(model, dataset))
            receipts.append(receipt)
    finally:
        log.write(changed=any(receipt.status != "unchanged" for receipt in receipts))
    return receipts


def _refuse_wrong_request(
    model: Model, folder: Path, target: Target, request: LoadRequest, datasets: Sequence[ModelDataset]
) -> None:
    """Refuse, before anything starts, requests that would fail in the middle of the batch."""
    if request.run_id is not None and not 0 < len(request.run_id.strip()) <= LONGEST_RUN_ID:
        wrong = f"A run id has 1 to {LONGEST_RUN_ID} characters."
        raise UsageError("wrong-run-id", wrong, "Leave it out for a new one.")
    ratio = request.max_delete_ratio
    if ratio is not None and not 0 <= ratio <= 1:
        raise UsageError(
            "wrong-ratio", "`max_delete_ratio=` must be between 0 and 1.", "Use 0.1 for a tenth."
        )
    later = {_table(model, dataset).lower() for dataset in datasets}
    for dataset in datasets:
        if (dataset.input or "").lower() in later:
            wrong = f"{dataset.name} is loaded from {dataset.input}, which is not loaded before it."
            raise UsageError("wrong-model", wrong, "Datasets are loaded in the model's order: move it down.")
        later.remove(_table(model, dataset).lower())
        _refuse_taken(model, target, dataset, datasets)
        prepare_load(model, dataset, _metadata(model, dataset, folder, target), target.dialect)
    if not datasets:
        events.warning("the model has no dataset that keeps a history")


def _refuse_taken(
    model: Model, target: Target, dataset: ModelDataset, datasets: Sequence[ModelDataset]
) -> None:
    """Raise UsageError if a dataset's name is a former name that another dataset's history still has."""
    schema = namespace_of(model, dataset)
    for other in datasets[datasets.index(dataset) + 1 :]:
        if (
            dataset.name in other.former_names
            and target.columns(schema, dataset.hist_name) is not None
            and target.columns(schema, other.hist_name) is None
        ):
            wrong = f"{other.name} was called {dataset.name} before, and its tables still have that name."
            raise UsageError("wrong-model", wrong, f"Move {other.name} before {dataset.name}.")


def _metadata(model: Model, dataset: ModelDataset, folder: Path, target: Target) -> HistState:
    """The history's metadata. A broken lock file is ignored, because the dataset's own load reports it."""
    now = datetime.now(UTC)
    try:
        hist = sync_hist(dataset, find_state(dataset, folder, namespace_of(model, dataset), target), now)
    except BackstoryError:
        hist = sync_hist(dataset, None, now)
    assert hist is not None
    return hist


def _table(model: Model, dataset: ModelDataset) -> str:
    return f"{namespace_of(model, dataset)}.{dataset.name}"


def _upstream(model: Model, dataset: ModelDataset) -> set[str]:
    """The tables of the model from which the dataset is loaded, directly or indirectly."""
    by_table = {_table(model, other).lower(): other for other in model.target_datasets}
    upstream: set[str] = set()
    names = [dataset.input]
    while names:
        # The input may be a base, its history, or a view of the history.
        source = by_table.get(HISTORY.sub("", (names.pop() or "").lower()))
        if source is not None and _table(model, source) not in upstream:
            upstream.add(_table(model, source))
            names.append(source.input)
    return upstream
