"""Read a model's YAML, fill in its defaults, and refuse models that cannot be loaded (section 1).

Errors name the path and the line in the document.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from backstory.documents import Document, DocumentKind, DocumentPart, read_document, validate
from backstory.doors.historize.model import (
    GENERATED,
    STRICT,
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
from backstory.stores.sql.columns import Datatype, other_form
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


def refuse_columns(dataset: ModelDataset, part: DocumentPart) -> None:
    """Raise UsageError for column names that are reserved, repeated or too long (section 1.1)."""
    columns, references = part.at("target_columns"), part.at("references")
    reserved = {role.value for role in TECHNICAL} | {dataset.key, dataset.hist_key}
    reserved |= {reference.column for reference in dataset.references}
    for number, column in enumerate(dataset.target_columns):
        if column.name in reserved:
            raise columns.at(number).wrong(
                f"{column.name} is a reserved name.", f"Rename the column to {column.name}_src."
            )
    refuse_repeats(columns, [column.name for column in dataset.target_columns])
    names: set[str] = set()
    for number, column in enumerate(dataset.target_columns):
        if column.system_role is ColumnRole.BUSINESS_KEY and column.active:
            if key_name(column) in names:
                raise columns.at(number).wrong(
                    f"the key already has {key_name(column)}; one of the two would be lost.",
                    "Give the column a key_name of its own.",
                )
            names.add(key_name(column))
    foreign = [reference.column for reference in dataset.references]
    refuse_repeats(references, foreign)
    for number, name in enumerate(foreign):
        if len(name) > LONGEST:
            raise references.at(number).wrong(f"its column {name} is longer than {LONGEST} characters.")
    if len(dataset.key) > LONGEST:
        raise part.at("target_dataset_name").wrong(
            f"the key {dataset.key} is longer than {LONGEST} characters."
        )


def refuse_placeholders(dataset: ModelDataset, part: DocumentPart) -> None:
    """Raise UsageError for names that contain a placeholder of the statements."""
    for number, column in enumerate(dataset.target_columns):
        for name in filter(None, (column.input, column.key_name)):
            if PLACEHOLDER.search(name):
                raise part.at("target_columns", number).wrong(
                    f"a part of {name!r} looks like a placeholder of a statement.",
                    "Rename the column in the stage.",
                )


def refuse_references(dataset: ModelDataset, model: Model, part: DocumentPart) -> None:
    """Raise UsageError for a reference with missing columns, or with keys that differ from the parent's."""
    children = {column.name: column for column in user_columns(dataset)}
    parents = {parent.name: parent for parent in reversed(model.target_datasets)}
    for number, reference in enumerate(dataset.references):
        parent = parents.get(reference.referenced_dataset)
        if parent is None:
            continue  # see `findings`
        components = part.at("references", number, "key_components")
        mapped = Counter(component.to for component in reference.key_components)
        wanted = {column.name: column for column in business_keys(parent)}
        if mapped != Counter(wanted.keys()):
            raise components.wrong(
                f"each business key of {parent.name} ({', '.join(wanted)}) must be mapped exactly once."
            )
        for component in reference.key_components:
            child, key = children.get(component.from_), wanted[component.to]
            if child is None:
                raise components.wrong(f"there is no column {component.from_!r}.")
            if _key_format(child) != _key_format(key):
                raise components.wrong(
                    f"{child.name} is a {child.datatype} and {key.name} a {key.datatype}: "
                    "equal values would have different keys."
                )


def _key_format(column: ModelColumn) -> tuple[Any, ...]:
    """The properties of a column that determine how its values are written in a key."""
    if column.datatype in {Datatype.INTEGER, Datatype.BIGINT}:
        return (Datatype.BIGINT,)
    return column.datatype, column.decimal_scale, column.hash_as


def refuse_repeats(part: DocumentPart, names: Iterable[str]) -> None:
    """Raise UsageError if a name occurs twice in this part."""
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            raise part.at(number).wrong(f"{name} is named twice.")
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
    refuse_repeats(document.at("target_schemas"), [schema.short_name for schema in schemas])
    refuse_repeats(document.at("source_datasets"), [source.name for source in model.source_datasets])
    whole = document.at("target_datasets")
    datasets = []
    for number, dataset in enumerate(model.target_datasets):
        part = whole.at(number)
        schema = by_name.get(dataset.target_schema)
        if schema is None:
            raise part.at("target_schema").wrong(f"there is no layer {dataset.target_schema!r}.")
        datasets.append(_fill_dataset(dataset, schema, model, part))
        _refuse_dataset(datasets[-1], schema, model, part)
    refuse_repeats(whole, [f"{each.target_schema}.{each.name}" for each in datasets])
    refuse_repeats(whole, [each.lineage_key or each.name for each in datasets])
    resolved = model.model_copy(update={"target_schemas": tuple(schemas), "target_datasets": tuple(datasets)})
    for number, dataset in enumerate(datasets):
        refuse_references(dataset, resolved, whole.at(number))
    known = {dataset.name for dataset in datasets}
    complete = tuple(_with_every_column(dataset, known) for dataset in datasets)
    return resolved.model_copy(update={"target_datasets": complete})


def _with_every_column(dataset: ModelDataset, known: Collection[str]) -> ModelDataset:
    """The dataset with its generated columns. References to datasets of other models become inactive."""
    references = tuple(
        each.model_copy(update={"active": each.active and each.referenced_dataset in known})
        for each in dataset.references
    )
    dataset = dataset.model_copy(update={"references": references})
    return dataset.model_copy(update={"target_columns": tuple(every_column(dataset))})


def schema_of(model: Model, dataset: ModelDataset) -> TargetSchema:
    """The layer to which a dataset belongs."""
    return next(schema for schema in model.target_schemas if schema.short_name == dataset.target_schema)


def namespace_of(model: Model, dataset: ModelDataset) -> str:
    """The namespace of the dataset's tables."""
    schema = schema_of(model, dataset)
    return schema.schema_name or schema.short_name


def source_of(model: Model, dataset: ModelDataset) -> SourceDataset | None:
    """The source dataset whose filter limits the delta, or None."""
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
    dataset: ModelDataset, schema: TargetSchema, model: Model, part: DocumentPart
) -> ModelDataset:
    stage, columns = _find_stage(dataset, part)
    source = source_of(model, dataset)
    if dataset.incremental_source and source is None:
        raise part.at("incremental_source").wrong(
            f"there is no source dataset {dataset.incremental_source!r}."
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


def _find_stage(dataset: ModelDataset, part: DocumentPart) -> tuple[str | None, list[ModelColumn]]:
    """The single table or file from which the columns are loaded, and the columns with their names in it."""
    stage, columns = dataset.input, []
    for number, column in enumerate(dataset.target_columns):
        if column.system_role in GENERATED:
            continue
        of_column, name = part.at("target_columns", number), column.source
        if column.input and dataset.input:
            name = column.input.removeprefix(f"{dataset.input}.")
        elif column.input:
            parsed = parse_input(column.input)
            if parsed is None or parsed[1] is None:
                raise of_column.at("input").wrong(
                    f"{column.input!r} names no column of a table or file.",
                    "Write it as schema.table.column or file.csv.column, or give the dataset an input.",
                )
            if stage not in {None, parsed[0]}:
                raise of_column.at("input").wrong(
                    f"the dataset's other columns are read from {stage}.", "Name one input."
                )
            stage, name = parsed[0], parsed[1]
        columns.append(_fill_column(column.model_copy(update={"input": name}), of_column))
    if dataset.input is not None and parse_input(dataset.input) is None:
        raise part.at("input").wrong("this names neither a table (schema.table) nor a CSV or Parquet file.")
    return stage, columns


def _fill_column(column: ModelColumn, part: DocumentPart) -> ModelColumn:
    precision, scale = column.decimal_precision, column.decimal_scale
    if column.datatype is Datatype.DECIMAL:
        if precision is None:
            precision, scale = DEFAULT_DECIMAL[0], DEFAULT_DECIMAL[1] if scale is None else scale
        update = {"decimal_precision": precision, "decimal_scale": scale or 0}
        column = column.model_copy(update=update)
        if update["decimal_scale"] > precision:
            raise part.at("decimal_scale").wrong("the scale is larger than the precision.")
    elif precision is not None or scale is not None:
        raise part.wrong(f"a {column.datatype} has neither precision nor scale.")
    if column.max_length is not None and column.datatype is not Datatype.STRING:
        raise part.at("max_length").wrong(f"a {column.datatype} has no length.")
    hashed = column.hash or column.system_role is not None
    if column.datatype is Datatype.FLOAT and hashed and column.active and column.hash_as is None:
        raise part.wrong(
            "a FLOAT cannot be hashed as it is: engines print it in different ways.",
            "Set hash_as: DECIMAL(p,s), or hash: false.",
        )
    if column.hash_as and column.datatype is not Datatype.FLOAT:
        raise part.at("hash_as").wrong("hash_as is only for a FLOAT.")
    return column


def _refuse_dataset(dataset: ModelDataset, schema: TargetSchema, model: Model, part: DocumentPart) -> None:
    if is_hist(dataset):
        if not dataset.name.endswith(HIST) or dataset.historize or dataset.incremental_source:
            raise part.wrong("a history has a name that ends in _hist, historize: false and no source.")
        return
    if dataset.incremental_strategy in {"append", "snapshot", "historize"}:
        raise part.at("incremental_strategy").wrong(
            f"the strategy {dataset.incremental_strategy} is not supported.", "Use full or merge."
        )
    refuse_columns(dataset, part)
    refuse_placeholders(dataset, part)
    if dataset.historize:
        _refuse_historized(dataset, schema, part)
    if dataset.incremental_strategy == "merge" and not (
        business_keys(dataset) and dataset.incremental_source
    ):
        raise part.wrong(
            "a merge needs business keys and an incremental_source.",
            "Add them, or use incremental_strategy: full with a stage that holds everything.",
        )
    source = source_of(model, dataset)
    cuts = source is not None and "DELTA_CUTOFF" in (source.increment_filter or "")
    if source is not None and cuts and active_policy(model, source) is None:
        raise part.at("incremental_source").wrong(
            f"the filter of {source.name} has a cutoff but no active policy for {model.environment!r}.",
            "Add an increment policy for this environment.",
        )


def _refuse_historized(dataset: ModelDataset, schema: TargetSchema, part: DocumentPart) -> None:
    name = part.at("target_dataset_name")
    if schema.short_name != RAWCORE:
        raise part.wrong(f"only datasets of the layer {RAWCORE} have a history.")
    if len(dataset.name) > LONGEST_BASE:
        raise name.wrong(
            f"the name is longer than {LONGEST_BASE} characters, which makes {dataset.hist_key} too long."
        )
    if dataset.name.endswith(HIST):
        raise name.wrong("the name of a historized base must not end in _hist.")
    if not business_keys(dataset):
        raise part.at("target_columns").wrong(
            "no column is a business_key.", "Set system_role: business_key on at least one."
        )
    if not schema.surrogate_keys_enabled:
        raise part.wrong("a history needs surrogate_keys_enabled.")
    usual = (schema.surrogate_key_pair_separator, schema.surrogate_key_component_separator) == ("~", "|")
    if schema.hash_profile == STRICT and not usual:
        raise part.document.at("target_schemas").wrong("strict_v2 allows only the separators ~ and |.")
    _refuse_rules(dataset, part.at("historization"))


def _refuse_rules(dataset: ModelDataset, part: DocumentPart) -> None:
    types = {column.name: column.datatype for column in user_columns(dataset)}
    rules, times = dataset.historization, {Datatype.TIMESTAMP, Datatype.DATE}
    if rules.effective_dating and types.get(rules.effective_dating.column) not in times:
        raise part.wrong("effective_dating names no TIMESTAMP or DATE column.")
    if soft := rules.soft_delete:
        if not {soft.column, soft.deleted_at or soft.column} <= types.keys():
            raise part.wrong("soft_delete names a column that does not exist.")
        if soft.deleted_at and types[soft.deleted_at] not in times:
            raise part.wrong("deleted_at of soft_delete names no TIMESTAMP or DATE column.")
        flag = next(column for column in user_columns(dataset) if column.name == soft.column)
        if flag.datatype is Datatype.FLOAT and flag.hash_as is None:
            raise part.wrong("soft_delete names a FLOAT without hash_as.", "Set hash_as: DECIMAL(p,s).")
        scale = flag.hash_as.scale if flag.hash_as else flag.decimal_scale
        examples = [other_form(value, flag.datatype, scale) for value in soft.deleted_values]
        if examples and all(examples):
            values = ", ".join(map(repr, soft.deleted_values))
            why = f"soft_delete has the deleted values {values}, and no {flag.datatype} is compared as one."
            raise part.wrong(why, f"Write them in the form of {examples[0]!r}.")
    if labels := rules.state_labels:
        distinct = [labels.new, labels.changed, labels.deleted]
        if len(set(distinct)) < len(distinct):
            raise part.wrong("two states have the same label.")
