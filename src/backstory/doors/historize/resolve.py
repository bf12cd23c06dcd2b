"""Read a model's YAML, fill in its defaults, and refuse models that cannot be loaded (section 1).

Errors name the path and the line in the document.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from backstory.documents import Document, DocumentKind, read_document, validate
from backstory.doors.historize.hashes import STRICT
from backstory.doors.historize.model import (
    GENERATED,
    TECHNICAL,
    ColumnRole,
    HistState,
    IncrementPolicy,
    Model,
    ModelColumn,
    ModelDataset,
    SourceDataset,
    TargetSchema,
    business_keys,
    every_column,
    key_name,
    user_columns,
)
from backstory.doors.historize.stage import parse_input
from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.engine import PLACEHOLDER

MODEL: Final = DocumentKind("model", absent_code="no-model", wrong_code="wrong-model")


def read_model(path: Path) -> tuple[Model, Document]:
    """Read a model's file. Returns the model as written, and its document."""
    document = read_document(path, MODEL)
    return validate(Model, document), document


def read_state(path: Path) -> HistState | None:
    """The history's metadata in a lock file, or None if the file does not exist."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError:
        text = b""
    return _state(path, text)


@lru_cache(maxsize=256)
def _state(path: Path, _text: bytes) -> HistState:
    """Parse the file, cached by its content. A load reads it twice, and YAML with line numbers is slow."""
    return validate(HistState, read_document(path, MODEL))


LONGEST = 63
Place = tuple[str | int, ...]


def refuse_columns(dataset: ModelDataset, document: Document, place: Place) -> None:
    """Raise UsageError for column names that are reserved, repeated or too long (section 1.1)."""
    reserved = {role.value for role in TECHNICAL} | {dataset.key, dataset.hist_key}
    reserved |= {reference.column for reference in dataset.references}
    for number, column in enumerate(dataset.target_columns):
        if column.name in reserved:
            raise document.wrong(
                (*place, "target_columns", number),
                f"{column.name} is a reserved name.",
                f"Rename the column to {column.name}_src.",
            )
    refuse_repeats(document, "target_columns", [column.name for column in dataset.target_columns], place)
    names: set[str] = set()
    for number, column in enumerate(dataset.target_columns):
        if column.system_role is ColumnRole.BUSINESS_KEY and column.active:
            if key_name(column) in names:
                raise document.wrong(
                    (*place, "target_columns", number),
                    f"the key already has {key_name(column)}; one of the two would be lost.",
                    "Give the column a key_name of its own.",
                )
            names.add(key_name(column))
    columns = [reference.column for reference in dataset.references]
    refuse_repeats(document, "references", columns, place)
    for number, name in enumerate(columns):
        if len(name) > LONGEST:
            raise document.wrong(
                (*place, "references", number), f"its column {name} is longer than {LONGEST} characters."
            )
    if len(dataset.key) > LONGEST:
        raise document.wrong(
            (*place, "target_dataset_name"), f"the key {dataset.key} is longer than {LONGEST} characters."
        )


def refuse_placeholders(dataset: ModelDataset, document: Document, place: Place) -> None:
    """Raise UsageError for names that contain a placeholder of the statements."""
    for number, column in enumerate(dataset.target_columns):
        for name in (column.input, column.key_name):
            if name is not None and PLACEHOLDER.search(name):
                raise document.wrong(
                    (*place, "target_columns", number),
                    f"a part of {name!r} looks like a placeholder of a statement.",
                    "Rename the column in the stage.",
                )


def refuse_references(dataset: ModelDataset, model: Model, document: Document, place: Place) -> None:
    """Raise UsageError for a reference with missing columns, or with keys that differ from the parent's."""
    children = {column.name: column for column in user_columns(dataset)}
    for number, reference in enumerate(dataset.references):
        path = (*place, "references", number)
        parent = next(
            (each for each in model.target_datasets if each.name == reference.referenced_dataset), None
        )
        if parent is None:
            continue  # see `findings`
        mapped = Counter(part.to for part in reference.key_components)
        wanted = {column.name: column for column in business_keys(parent)}
        if mapped != Counter(wanted.keys()):
            raise document.wrong(
                (*path, "key_components"),
                f"each business key of {parent.name} ({', '.join(wanted)}) must be mapped exactly once.",
            )
        for part in reference.key_components:
            child = children.get(part.from_)
            if child is None:
                raise document.wrong((*path, "key_components"), f"there is no column {part.from_!r}.")
            if _key_format(child) != _key_format(wanted[part.to]):
                raise document.wrong(
                    (*path, "key_components"),
                    f"{part.from_} is a {child.datatype} and {part.to} a {wanted[part.to].datatype}: "
                    "equal values would have different keys.",
                )


def _key_format(column: ModelColumn) -> tuple[Any, ...]:
    """The properties of a column that determine how its values are written in a key."""
    if column.datatype in {Datatype.INTEGER, Datatype.BIGINT}:
        return (Datatype.BIGINT,)
    return column.datatype, column.decimal_scale, column.hash_as


def refuse_repeats(
    document: Document, what: str, names: Iterable[str], place: Sequence[str | int] = ()
) -> None:
    """Raise UsageError if names are repeated."""
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            raise document.wrong((*place, what, number), f"{name} is named twice.")
        seen.add(name)


RAWCORE = "rawcore"
HIST = "_hist"
LONGEST_BASE = LONGEST - len("_hist_key")
DEFAULT_DECIMAL = (38, 10)


def resolve(model: Model, document: Document) -> Model:
    """The model with every default and every generated column.

    Raises UsageError for a wrong model. A resolved model resolves to itself.
    """
    schemas = [_fill_schema(schema, model) for schema in model.target_schemas]
    by_name = {schema.short_name: schema for schema in schemas}
    refuse_repeats(document, "target_schemas", [schema.short_name for schema in schemas])
    refuse_repeats(document, "source_datasets", [source.name for source in model.source_datasets])
    datasets = []
    for number, dataset in enumerate(model.target_datasets):
        place: Place = ("target_datasets", number)
        schema = by_name.get(dataset.target_schema)
        if schema is None:
            raise document.wrong((*place, "target_schema"), f"there is no layer {dataset.target_schema!r}.")
        filled = _fill_dataset(dataset, schema, model, document, place)
        _refuse_dataset(filled, schema, model, document, place)
        datasets.append(filled)
    refuse_repeats(document, "target_datasets", [f"{each.target_schema}.{each.name}" for each in datasets])
    refuse_repeats(document, "target_datasets", [each.lineage_key or each.name for each in datasets])
    resolved = model.model_copy(update={"target_schemas": tuple(schemas), "target_datasets": tuple(datasets)})
    for number, dataset in enumerate(datasets):
        refuse_references(dataset, resolved, document, ("target_datasets", number))
    known = {dataset.name for dataset in datasets}
    linked = (_with_references(dataset, known) for dataset in datasets)
    whole = tuple(
        dataset.model_copy(update={"target_columns": tuple(every_column(dataset))}) for dataset in linked
    )
    return resolved.model_copy(update={"target_datasets": whole})


def schema_of(model: Model, dataset: ModelDataset) -> TargetSchema:
    """The layer to which a dataset belongs."""
    return next(schema for schema in model.target_schemas if schema.short_name == dataset.target_schema)


def namespace_of(model: Model, dataset: ModelDataset) -> str:
    """The namespace of the dataset's tables."""
    schema = schema_of(model, dataset)
    return schema.schema_name or schema.short_name


def source_of(model: Model, dataset: ModelDataset) -> SourceDataset | None:
    """The source dataset whose filter limits the delta."""
    return next((each for each in model.source_datasets if each.name == dataset.incremental_source), None)


def active_policy(model: Model, source: SourceDataset) -> IncrementPolicy | None:
    """The policy that limits a delta in the model's environment, or None if no policy is active."""
    here = (each for each in source.increment_policies if each.active)
    return next((each for each in here if each.environment == model.environment), None)


def is_hist(dataset: ModelDataset) -> bool:
    """Whether the dataset is itself a history (R3)."""
    return dataset.target_schema == RAWCORE and dataset.incremental_strategy == "historize"


def findings(model: Model) -> list[str]:
    """Warnings about a valid model."""
    suffixes = [
        f"{dataset.name} ends in {HIST} but is not a history."
        for dataset in model.target_datasets
        if dataset.name.endswith(HIST) and not is_hist(dataset)
    ]
    known = {dataset.name for dataset in model.target_datasets}
    elsewhere = [
        f"{dataset.name} has no {reference.column}: the model does not know {reference.referenced_dataset}."
        for dataset in model.target_datasets
        for reference in dataset.references
        if reference.referenced_dataset not in known
    ]
    return suffixes + elsewhere


def _fill_schema(schema: TargetSchema, model: Model) -> TargetSchema:
    rawcore = schema.short_name == RAWCORE
    defaults: dict[str, Any] = {
        "schema_name": schema.short_name,
        "physical_prefix": "rc" if rawcore else schema.short_name,
        "default_historize": rawcore,
        "incremental_strategy_default": "merge" if rawcore else "full",
        "hash_profile": model.hash_profile,
    }
    return _fill(schema, defaults)


def _fill(part: Any, defaults: dict[str, Any]) -> Any:
    return part.model_copy(
        update={name: value for name, value in defaults.items() if getattr(part, name) is None}
    )


def _fill_dataset(
    dataset: ModelDataset, schema: TargetSchema, model: Model, document: Document, place: Place
) -> ModelDataset:
    stage, columns = _find_stage(dataset, document, place)
    source = source_of(model, dataset)
    if dataset.incremental_source and source is None:
        raise document.wrong(
            (*place, "incremental_source"), f"there is no source dataset {dataset.incremental_source!r}."
        )
    strategy = schema.incremental_strategy_default if source and source.incremental else "full"
    return _fill(
        dataset.model_copy(update={"input": stage, "target_columns": tuple(columns)}),
        {
            "historize": schema.default_historize and dataset.incremental_strategy != "historize",
            "incremental_strategy": strategy,
            "materialization_type": schema.default_materialization_type,
            # The dataset's first name. It stays the same when the dataset is renamed, and no other dataset
            # has it.
            "lineage_key": f"{schema.short_name}:{(*dataset.former_names, dataset.name)[0]}",
        },
    )


def _find_stage(
    dataset: ModelDataset, document: Document, place: Place
) -> tuple[str | None, list[ModelColumn]]:
    """The single table or file from which the columns are loaded, and the columns with their names in it."""
    stage, columns = dataset.input, []
    for number, column in enumerate(dataset.target_columns):
        path = (*place, "target_columns", number)
        if column.system_role in GENERATED:
            continue
        name = column.source
        if column.input and dataset.input and column.input.startswith(f"{dataset.input}."):
            name = column.input[len(dataset.input) + 1 :]
        elif column.input and not dataset.input:
            parsed = parse_input(column.input)
            if parsed is None or parsed[1] is None:
                raise document.wrong(
                    (*path, "input"),
                    f"{column.input!r} names no column of a table or file.",
                    "Write it as schema.table.column or file.csv.column, or give the dataset an input.",
                )
            if stage not in {None, parsed[0]}:
                raise document.wrong(
                    (*path, "input"), f"the dataset's other columns are read from {stage}.", "Name one input."
                )
            stage, name = parsed[0], parsed[1]
        columns.append(_fill_column(column.model_copy(update={"input": name}), document, path))
    if dataset.input is not None and parse_input(dataset.input) is None:
        raise document.wrong((*place, "input"), "this names neither a table (schema.table) nor a file.")
    return stage, columns


def _fill_column(column: ModelColumn, document: Document, path: Place) -> ModelColumn:
    if column.datatype is Datatype.DECIMAL:
        precision, scale = column.decimal_precision, column.decimal_scale
        column = column.model_copy(
            update={
                "decimal_precision": DEFAULT_DECIMAL[0] if precision is None else precision,
                "decimal_scale": (DEFAULT_DECIMAL[1] if precision is None else 0) if scale is None else scale,
            }
        )
        if (column.decimal_scale or 0) > (column.decimal_precision or 0):
            raise document.wrong((*path, "decimal_scale"), "the scale is larger than the precision.")
    elif column.decimal_precision is not None or column.decimal_scale is not None:
        raise document.wrong(path, f"a {column.datatype} has neither precision nor scale.")
    if column.max_length is not None and column.datatype is not Datatype.STRING:
        raise document.wrong((*path, "max_length"), f"a {column.datatype} has no length.")
    hashed = column.hash or column.system_role is not None
    if column.datatype is Datatype.FLOAT and hashed and column.active and column.hash_as is None:
        raise document.wrong(
            path,
            "a FLOAT cannot be hashed as it is: engines print it in different ways.",
            "Set hash_as: DECIMAL(p,s), or hash: false.",
        )
    if column.hash_as and column.datatype is not Datatype.FLOAT:
        raise document.wrong((*path, "hash_as"), "hash_as is only for a FLOAT.")
    return column


def _with_references(dataset: ModelDataset, known: Collection[str]) -> ModelDataset:
    """The dataset, with references to datasets of other models set inactive, so that they add no column."""
    references = tuple(
        each.model_copy(update={"active": each.active and each.referenced_dataset in known})
        for each in dataset.references
    )
    return dataset.model_copy(update={"references": references})


def _refuse_dataset(
    dataset: ModelDataset, schema: TargetSchema, model: Model, document: Document, place: Place
) -> None:
    if is_hist(dataset):
        if not dataset.name.endswith(HIST) or dataset.historize or dataset.incremental_source:
            raise document.wrong(
                place, "a history has a name that ends in _hist, historize: false and no source."
            )
        return
    if dataset.incremental_strategy in {"append", "snapshot", "historize"}:
        raise document.wrong(
            (*place, "incremental_strategy"),
            f"the strategy {dataset.incremental_strategy} is not supported.",
            "Use full or merge.",
        )
    refuse_columns(dataset, document, place)
    refuse_placeholders(dataset, document, place)
    if dataset.historize:
        _refuse_historized(dataset, schema, document, place)
    if dataset.incremental_strategy == "merge" and not (
        business_keys(dataset) and dataset.incremental_source
    ):
        raise document.wrong(
            place,
            "a merge needs business keys and an incremental_source.",
            "Add them, or use incremental_strategy: full with a stage that holds everything.",
        )
    source = source_of(model, dataset)
    cuts = source is not None and "DELTA_CUTOFF" in (source.increment_filter or "")
    if source is not None and cuts and active_policy(model, source) is None:
        raise document.wrong(
            (*place, "incremental_source"),
            f"the filter of {source.name} has a cutoff but no active policy for {model.environment!r}.",
            "Add an increment policy for this environment.",
        )


def _refuse_historized(dataset: ModelDataset, schema: TargetSchema, document: Document, place: Place) -> None:
    path = (*place, "target_dataset_name")
    if schema.short_name != RAWCORE:
        raise document.wrong(place, f"only datasets of the layer {RAWCORE} have a history.")
    if len(dataset.name) > LONGEST_BASE:
        raise document.wrong(
            path,
            f"the name is longer than {LONGEST_BASE} characters, which makes {dataset.hist_key} too long.",
        )
    if dataset.name.endswith(HIST):
        raise document.wrong(path, "the name of a historized base must not end in _hist.")
    if not business_keys(dataset):
        raise document.wrong(
            (*place, "target_columns"),
            "no column is a business_key.",
            "Set system_role: business_key on at least one.",
        )
    if not schema.surrogate_keys_enabled:
        raise document.wrong(place, "a history needs surrogate_keys_enabled.")
    usual = (schema.surrogate_key_pair_separator, schema.surrogate_key_component_separator) == ("~", "|")
    if schema.hash_profile == STRICT and not usual:
        raise document.wrong(("target_schemas",), "strict_v2 allows only the separators ~ and |.")
    _refuse_rules(dataset, document, place)


def _refuse_rules(dataset: ModelDataset, document: Document, place: Place) -> None:
    names = {column.name: column for column in user_columns(dataset)}
    rules = dataset.historization
    if rules.effective_dating:
        column = names.get(rules.effective_dating.column)
        if column is None or column.datatype not in {Datatype.TIMESTAMP, Datatype.DATE}:
            raise document.wrong(
                (*place, "historization"), "effective_dating names no TIMESTAMP or DATE column."
            )
    if soft := rules.soft_delete:
        if not {soft.column, soft.deleted_at or soft.column} <= set(names):
            raise document.wrong((*place, "historization"), "soft_delete names a column that does not exist.")
        if soft.deleted_at and names[soft.deleted_at].datatype not in {Datatype.TIMESTAMP, Datatype.DATE}:
            raise document.wrong(
                (*place, "historization"), "deleted_at of soft_delete names no TIMESTAMP or DATE column."
            )
    if labels := rules.state_labels:
        distinct = [labels.new, labels.changed, labels.deleted]
        if len(set(distinct)) < len(distinct):
            raise document.wrong((*place, "historization"), "two states have the same label.")
