"""Load the histories of a model into a warehouse or a database, or write an SQL script to do so (section 3).

A load updates a base, the schema of its history, and the history. Loads are retried after conflicts, and each
has a receipt. Every key is computed with the pepper, a secret that is never stored, printed or included in a
plan (section 1.1).
"""

import os
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from traceback import format_exc
from typing import TYPE_CHECKING, Final

import structlog

from backstory.doors.historize.hist_state import ModelPlace, find_only_state, sync_hist
from backstory.doors.historize.load import Load, delta_cutoff, prepare_load, refuse_swaps
from backstory.doors.historize.model import HistState, Model, ModelDataset, stored_labels, user_columns
from backstory.doors.historize.receipts import (
    HistoryReceipt,
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
from backstory.doors.historize.runs import LoadRun, RegisteredRun, RunLog, Target
from backstory.doors.historize.sql_target import SqlTarget, base_steps
from backstory.doors.historize.stage import read_stage, stage_of
from backstory.engine.deliver import retry
from backstory.errors import BackstoryError, Failed, Refused, TryAgain, UsageError, internal_error
from backstory.formats.memory import translate_disk_errors
from backstory.model.instant import iso
from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.dialects import get_dialect
from backstory.strategies.scd2.statements import hist_steps
from backstory.upkeep.model_histories import SUFFIXES

if TYPE_CHECKING:
    from backstory.stores.iceberg.store import IcebergStore


def find_pepper(environment: str) -> str:
    """The pepper from the environment variables.

    The first of these variables that is set is used: BACKSTORY_PEPPER, ELEVATA_PEPPER,
    SEC_<ENVIRONMENT>_PEPPER. Raises UsageError if none is set.
    """
    names = ["BACKSTORY_PEPPER", "ELEVATA_PEPPER", f"SEC_{environment.upper()}_PEPPER"]
    for name in names:
        if os.environ.get(name):
            return os.environ[name]
    raise UsageError(
        "no-pepper",
        "No pepper is set, and every key needs one.",
        f"Set {names[0]} (or {', '.join(names[1:])}).",
    )


SPARK = "spark_iceberg"


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model, the folder to which its file paths are relative, and the dialect for its loads."""

    model: Model
    folder: Path
    dialect: Dialect

    @property
    def on_spark(self) -> bool:
        """Whether the loads run on Spark."""
        return self.dialect.DIALECT_NAME == SPARK


def choose(path: str | Path, dialect: str | None) -> ChosenModel:
    """Read a model. Its loads use the given dialect, or else the model's own.

    Raises UsageError for a wrong model or an unknown dialect.
    """
    model, folder = open_model(path)
    return ChosenModel(model, folder, get_dialect(dialect or model.dialect))


def script(chosen: ChosenModel, only: str | None = None) -> str:
    """The SQL for each dataset, with placeholders: CREATE TABLE, the base load, and the history's four steps.

    The script loads histories in four steps for every dialect, even for Spark.
    """
    parts = [
        part for dataset in datasets_to_load(chosen.model, only) for part in _dataset_script(chosen, dataset)
    ]
    return "\n\n".join(parts) + "\n"


def _dataset_script(chosen: ChosenModel, dataset: ModelDataset) -> Iterator[str]:
    model, folder, dialect = chosen.model, chosen.folder, chosen.dialect
    refuse_swaps(dataset)
    hist = sync_hist(dataset, find_only_state(model, dataset, folder), datetime.now(UTC))
    load = prepare_load(model, dataset, hist, dialect)
    live = [column for column in hist.target_columns if column.active]
    yield f"-- Tables of {dataset.name}"
    yield _terminate(dialect.render_create_schema_if_not_exists(load.schema))
    make = dialect.render_create_table_if_not_exists_from_columns
    yield _terminate(make(load.base_table, load.base_columns))
    yield _terminate(make(load.hist_table, live))
    yield from _base_script(load, dataset, folder, dialect)
    yield f"-- History load for {dataset.name}"
    for statement in hist_steps(load.pair):
        yield f"-- {statement.step}\n{_terminate(statement.sql)}"


def _base_script(load: Load, dataset: ModelDataset, folder: Path, dialect: Dialect) -> Iterator[str]:
    stage = stage_of(dataset, folder)
    if stage is None:
        yield f"-- {dataset.name} has no stage input: its base is used as it is"
        return
    relation = dialect.render_table_identifier(*stage.table)
    comment = f"-- Base load of {dataset.name}"
    if stage.path:
        relation = dialect.render_identifier(f"backstory_stage_{dataset.name}")
        comment += f" from {stage.name}, loaded into {relation}"
    yield comment
    if not load.deletes_base:
        yield "-- No delete detection: the source has no filter that says what the stage should hold"
    for statement in base_steps(replace(load, stage=relation)):
        yield f"-- {statement.step}\n{_terminate(statement.sql)}"


def _terminate(sql: str) -> str:
    return f"{sql};"


def historize_on_spark(
    chosen: ChosenModel, store: "IcebergStore", request: LoadRequest
) -> list[HistoryReceipt]:
    """Load a model's datasets into a warehouse. Returns one receipt for each."""
    from backstory.doors.historize.spark_target import SparkTarget

    pepper = find_pepper(chosen.model.environment)
    return run_model(chosen.model, chosen.folder, SparkTarget(store, pepper), request)


def historize_on_database(chosen: ChosenModel, url: str | None, request: LoadRequest) -> list[HistoryReceipt]:
    """Load a model's datasets into a database, and close the connection at the end."""
    dialect = chosen.dialect
    if type(dialect).get_execution_engine is Dialect.get_execution_engine:
        dialect.get_execution_engine(url or "")  # raises UsageError: an address does not help
    if url is None:
        raise UsageError(
            "no-url",
            f"The dialect {dialect.DIALECT_NAME} needs the address of its database.",
            "Use `url=ADDRESS`, such as duckdb:///path/file.duckdb or postgresql://user@host:port/database.",
        )
    pepper = find_pepper(chosen.model.environment)
    with dialect.get_execution_engine(url) as engine:
        return run_model(chosen.model, chosen.folder, SqlTarget(dialect, engine, pepper), request)


# Files of at most this many bytes are read early. Larger files are left to the load.
SMALL: Final = 4 << 20


def early_refusals(chosen: ChosenModel, request: LoadRequest) -> list[HistoryReceipt]:
    """The receipts of all loads if every load's file is refused, or else an empty list.

    This check runs before Java and Spark start. A run that ends here writes nothing, not even a row of the
    run log. A run with an id is not checked, because it may be known already, and then it reads no file.
    Raises UsageError for a wrong option, or if there is no pepper.
    """
    find_pepper(chosen.model.environment)
    _refuse_wrong_options(request)
    if request.skip_base or request.run_id is not None:
        return []
    run_id, receipts = str(uuid.uuid4()), []
    for dataset in datasets_to_load(chosen.model, request.dataset):
        stop = _file_refusal(chosen, dataset)
        if stop is None:
            return []
        receipts.append(refusal(dataset.name, run_id, None, stop))
    return receipts


def _file_refusal(chosen: ChosenModel, dataset: ModelDataset) -> Refused | None:
    """The error in a dataset's file, or None. Tables and large files are not read."""
    stage = stage_of(dataset, chosen.folder)
    if stage is None or stage.path is None or (stage.path.is_file() and stage.path.stat().st_size > SMALL):
        return None
    try:
        read_stage(stage, user_columns(dataset))
    except Refused as stop:
        return stop
    return None


CLOCK_LAG = timedelta(seconds=1)

# Parts of the error messages of Spark, DuckDB and PostgreSQL for a value that a type cannot hold.
MISFITS: Final = (
    "CAST_INVALID_INPUT",
    "CAST_OVERFLOW",
    "NUMERIC_VALUE_OUT_OF_RANGE",
    "Conversion Error",
    "numeric field overflow",
    "invalid input syntax",
    "out of range",
)
# Types whose values the database checks, because a stage may have strings or wider integers for them.
_CHECKED: Final = {Datatype.INTEGER, Datatype.JSON, Datatype.TIME, Datatype.UUID}
events = structlog.get_logger()


@dataclass(frozen=True)
class ModelLoads(ModelPlace):
    """The loads of the datasets of a model, one dataset at a time."""

    request: LoadRequest
    log: RunLog

    def load(self, dataset: ModelDataset, waiting: Sequence[ModelDataset]) -> HistoryReceipt:
        """Load a dataset. After a conflict, the load is retried with the same instant.

        `waiting` are the datasets whose tables may still have former names. It may contain this dataset.
        """
        began, schema, run_id = self.log.clock(), namespace_of(self.model, dataset), self.log.run_id
        run: LoadRun | None = None
        try:
            with translate_disk_errors(dataset.name), self.target.hold(schema, dataset, run_id):
                others = [each for each in waiting if each.name != dataset.name]
                self._refuse_taken(dataset, others)
                known = self.target.find_run(schema, dataset, run_id) if self.request.run_id else None
                self._refuse_other_instant(known)
                if known and known.receipt:
                    return replace(stored_receipt(known.receipt), dataset=dataset.name)
                run = current = self._plan_run(dataset, schema, known, began)

                def start_next_attempt(busy: TryAgain) -> None:
                    nonlocal run, current
                    self.log.add_failure(dataset, current, began, busy)
                    run = current = replace(current, attempt=current.attempt + 1)

                return retry(lambda: self._load(current), start_next_attempt)
        except Exception as stop:  # the other datasets still run
            error = stop if isinstance(stop, BackstoryError) else internal_error(stop)
            if error is not stop:
                events.debug("an internal error", trace=format_exc())  # without the values of variables
            error = _as_value_refusal(dataset, error)
            self.log.add_failure(dataset, run, began, error)
            return refusal(dataset.name, run_id, run.instant if run else None, error)

    def skip(self, dataset: ModelDataset, upstream: str) -> HistoryReceipt:
        """Log a dataset that is skipped because the load of its input failed. Returns its receipt."""
        error = Refused(
            "BASE_NOT_LOADED",
            f"{dataset.name} is loaded from {upstream}, whose own load failed.",
            "Fix that load and run again.",
        )
        self.log.add_blocked(dataset, upstream)
        return refusal(dataset.name, self.log.run_id, None, error)

    def _refuse_other_instant(self, known: RegisteredRun | None) -> None:
        instant = self.request.load_timestamp
        if known and instant and known.load_timestamp != instant:
            raise Refused(
                "OTHER_LOAD_TIMESTAMP",
                f"The run {self.log.run_id} already has the load timestamp {iso(known.load_timestamp)}.",
                "Leave out the timestamp, or use another run id.",
            )

    def _plan_run(
        self, dataset: ModelDataset, schema: str, known: RegisteredRun | None, began: datetime
    ) -> LoadRun:
        instant = (
            known.load_timestamp
            if known
            else self.request.load_timestamp or self._allocate_instant(dataset, schema)
        )
        return LoadRun(
            dataset,
            schema,
            self.log.run_id,
            instant,
            began,
            attempt=known.attempt + 1 if known else 1,
            stage=stage_of(dataset, self.folder),
            cutoff=delta_cutoff(self.model, dataset, instant),
            skip_base=self.request.skip_base,
            dry_run=self.request.dry_run,
        )

    def _allocate_instant(self, dataset: ModelDataset, schema: str) -> datetime:
        """The load's instant: the current time, unless the history's newest time is at or after it.

        Then the instant is just after the newest time. Raises Refused if the newest time is more than a
        second ahead of the clock.
        """
        now = self.log.clock()
        newest = self.target.newest_instant(schema, dataset.hist_names)
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
        state = self.find_state(dataset) or self.adopt_state(dataset)
        refuse_swaps(dataset)
        hist = sync_hist(dataset, state, run.instant)
        run, hist = self._settle_changes(replace(run, dataset=dataset), state, hist)
        load = prepare_load(self.model, dataset, hist, self.target.dialect)
        if not run.dry_run:
            self.target.register(run)
        outcome = self.target.load(load, run)
        receipt = run.receipt(outcome)
        if not run.dry_run:
            try:
                self.write_state(dataset, hist)
            except BackstoryError as error:  # the load is already committed
                events.warning(str(error))
            self.log.add_success(run, outcome, receipt)
        return receipt

    def _override_rules(self, dataset: ModelDataset) -> ModelDataset:
        once = {
            "allow_empty_snapshot": self.request.allow_empty or None,
            "max_delete_ratio": self.request.max_delete_ratio,
        }
        given = {name: value for name, value in once.items() if value is not None}
        rules = dataset.historization.model_copy(update=given)
        return dataset.model_copy(update={"historization": rules})

    def _settle_changes(
        self, run: LoadRun, state: HistState | None, hist: HistState
    ) -> tuple[LoadRun, HistState]:
        """The run and the metadata, adjusted to a changed hash profile or changed labels.

        Raises Refused if the request lacks the option for the change.
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
        labels = stored_labels(run.dataset.historization.state_labels)
        stored = None if state is None else stored_labels(state.state_labels)
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

    def refuse_wrong_request(self, datasets: Sequence[ModelDataset]) -> None:
        """Refuse a request at the start if it would fail in the middle of the batch."""
        _refuse_wrong_options(self.request)
        model, tables, waiting = self.model, _by_table(self.model), datasets_to_load(self.model, None)
        later = {_table(model, dataset) for dataset in datasets}
        for dataset in datasets:
            source = _source(tables, dataset)
            if source is not None and _table(model, source) in later:
                wrong = f"{dataset.name} is loaded from {dataset.input}, which is not loaded before it."
                remedy = "Datasets are loaded in the model's order: move it down."
                raise UsageError("wrong-model", wrong, remedy)
            later.remove(_table(model, dataset))
            waiting = [each for each in waiting if each.name != dataset.name]
            self._refuse_taken(dataset, waiting, later)
            prepare_load(model, dataset, self._metadata(dataset), self.target.dialect)
        if not datasets:
            events.warning("the model has no dataset that keeps a history")

    def _refuse_taken(
        self, dataset: ModelDataset, others: Sequence[ModelDataset], later: Collection[str] = ()
    ) -> None:
        """Raise UsageError if the tables of one of the other datasets still have the name of this dataset.

        `later` are the tables that the batch loads after this dataset.
        """
        for other in others:
            if dataset.name in other.former_names:
                schema, own = namespace_of(self.model, other), self.without_lost_names(other)
                stored = (name for name in own.hist_names if self.target.columns(schema, name) is not None)
                if next(stored, None) == dataset.hist_name:
                    wrong = (
                        f"{other.name} was called {dataset.name} before, and its tables still have that name."
                    )
                    if _table(self.model, other) in later:
                        remedy = f"Load {other.name} first: move it before {dataset.name}."
                        raise UsageError("wrong-model", wrong, remedy)
                    raise UsageError("wrong-model", wrong, f"Load {other.name} first.")

    def _metadata(self, dataset: ModelDataset) -> HistState:
        """The history's metadata. A broken lock file is ignored, because the load itself reports it."""
        now = datetime.now(UTC)
        try:
            return sync_hist(dataset, self.find_state(dataset), now)
        except BackstoryError:
            return sync_hist(dataset, None, now)


def _as_value_refusal(dataset: ModelDataset, error: BackstoryError) -> BackstoryError:
    """The error, replaced by HASH_VALUE or STAGE_TYPE if a type cannot hold a value."""
    if not isinstance(error, Failed) or not any(words in error.message for words in MISFITS):
        return error
    message = error.message.lower()
    checked = [each for each in user_columns(dataset) if each.datatype in _CHECKED]
    columns = [each.name for each in dataset.target_columns if each.hash_as and each.active]
    if checked and not (columns and ("decimal" in message or "numeric" in message)):
        named = [each for each in checked if str(each.datatype).lower() in message] or checked
        columns = [each.name for each in named]
        return Refused(
            "STAGE_TYPE",
            f"{dataset.name} has a value in {' or '.join(columns)} that the column's type cannot hold.",
            "Nothing was written; fix the value in the stage, or change the column's datatype.",
            columns,
        )
    if not columns:
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
    """A resolved model, and the folder to which its file paths are relative.

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
    batch = str(uuid.uuid4())
    log = RunLog(model, target, batch, request.run_id or batch, silent=request.dry_run, clock=clock)
    loads = ModelLoads(model, folder, target, request, log)
    datasets = [loads.without_lost_names(each) for each in datasets_to_load(model, request.dataset)]
    loads.refuse_wrong_request(datasets)
    receipts: list[HistoryReceipt] = []
    tables, failed, waiting = _by_table(model), set[str](), datasets_to_load(model, None)
    try:
        for dataset in datasets:
            upstream = _upstream(model, tables, dataset) & failed
            receipt = loads.skip(dataset, min(upstream)) if upstream else loads.load(dataset, waiting)
            if receipt.status in {"rejected", "failed"}:
                failed.add(_table(model, dataset))
            elif request.dry_run:  # a load would have renamed its tables
                waiting = [each for each in waiting if each.name != dataset.name]
            receipts.append(receipt)
    finally:
        log.write(changed=any(receipt.status != "unchanged" for receipt in receipts))
    return receipts


def _refuse_wrong_options(request: LoadRequest) -> None:
    if request.run_id is not None and not 0 < len(request.run_id.strip()) <= LONGEST_RUN_ID:
        wrong = f"A run id has 1 to {LONGEST_RUN_ID} characters."
        raise UsageError("wrong-run-id", wrong, "Leave it out for a new one.")
    ratio = request.max_delete_ratio
    if ratio is not None and not 0 <= ratio <= 1:
        raise UsageError(
            "wrong-ratio", "`max_delete_ratio=` must be between 0 and 1.", "Use 0.1 for a tenth."
        )


def _table(model: Model, dataset: ModelDataset) -> str:
    return f"{namespace_of(model, dataset)}.{dataset.name}"


def _by_table(model: Model) -> dict[str, ModelDataset]:
    """The datasets by their base tables, in lower case."""
    return {_table(model, dataset).lower(): dataset for dataset in model.target_datasets}


def _source(tables: Mapping[str, ModelDataset], dataset: ModelDataset) -> ModelDataset | None:
    """The dataset whose base, history, or view of the history is the input of another dataset, or None."""
    return tables.get(HISTORY.sub("", (dataset.input or "").lower()))


def _upstream(model: Model, tables: Mapping[str, ModelDataset], dataset: ModelDataset) -> set[str]:
    """The tables of the model from which the dataset is loaded, directly or indirectly."""
    upstream: set[str] = set()
    source = _source(tables, dataset)
    while source is not None and _table(model, source) not in upstream:
        upstream.add(_table(model, source))
        source = _source(tables, source)
    return upstream
