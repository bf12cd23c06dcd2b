"""The model of a historization, as its YAML defines it, and the columns of its tables (sections 1 and 2.1).

The classes define the document, its validation and its JSON Schema. `resolve` adds the defaults.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, StringConstraints, model_validator

from backstory.formats.file_options import FileOptions
from backstory.model import layout
from backstory.stores.sql.columns import Datatype
from backstory.strategies.scd2.transitions import State

DATASET_NAME = r"^[a-z][a-z0-9_]{0,62}$"
COLUMN_NAME = r"^[a-z_][a-z0-9_]{0,62}$"
TOKEN = r"^[A-Za-z0-9_.+/=~|-]*$"  # noqa: S105 - no secret
HASH_AS = r"^DECIMAL\((\d+),\s*(\d+)\)$"

DatasetName = Annotated[str, StringConstraints(pattern=DATASET_NAME)]
ColumnName = Annotated[str, StringConstraints(pattern=COLUMN_NAME)]
Token = Annotated[str, StringConstraints(pattern=TOKEN, max_length=64)]
Label = Annotated[str, StringConstraints(min_length=1, max_length=20, pattern=r"^[^\x00-\x1f\x7f]+$")]


class ColumnRole(StrEnum):
    """The role of a column. Business attributes have no role."""

    BUSINESS_KEY = "business_key"
    SURROGATE_KEY = "surrogate_key"
    FOREIGN_KEY = "foreign_key"
    ENTITY_KEY = "entity_key"
    ROW_HASH = layout.ROW_HASH
    PAYLOAD = "payload"
    LOAD_RUN_ID = layout.LOAD_RUN_ID
    LOADED_AT = layout.LOADED_AT
    STARTED = layout.STARTED
    ENDED = layout.ENDED
    STATE = layout.STATE


# Columns that the tool generates; users never name them.
_VERSION = {ColumnRole.STARTED, ColumnRole.ENDED, ColumnRole.STATE}
TECHNICAL = frozenset(
    {ColumnRole.PAYLOAD, ColumnRole.LOAD_RUN_ID, ColumnRole.LOADED_AT, ColumnRole.ROW_HASH, *_VERSION}
)
# Columns that a stage may have, and that the base then copies (decision H9).
LOAD_COLUMNS = (ColumnRole.LOAD_RUN_ID, ColumnRole.LOADED_AT)
GENERATED = TECHNICAL | {ColumnRole.SURROGATE_KEY, ColumnRole.ENTITY_KEY, ColumnRole.FOREIGN_KEY}


class _Part(BaseModel):
    """A part of the document: unknown keys are an error, and values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TargetSchema(_Part):
    """A layer, and the rules for its keys."""

    short_name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]{0,9}$")]
    database_name: str | None = None
    schema_name: str | None = None
    physical_prefix: str | None = None
    default_materialization_type: Literal["table"] = "table"
    default_historize: bool | None = None
    incremental_strategy_default: Literal["full", "merge"] | None = None
    surrogate_keys_enabled: bool = True
    surrogate_key_algorithm: Literal["sha256"] = "sha256"
    surrogate_key_null_token: Token = "null_replaced"  # noqa: S105 - no secret
    surrogate_key_pair_separator: Token = "~"
    surrogate_key_component_separator: Token = "|"
    pepper_strategy: Literal["runtime_pepper"] = "runtime_pepper"
    hash_profile: Literal["elevata_v1", "strict_v2"] | None = None


class IncrementPolicy(_Part):
    """The time span of a delta in one environment."""

    environment: str
    increment_interval_length: int = Field(gt=0)
    increment_interval_unit: Literal["day", "month", "year"]
    active: bool = True


class SourceDataset(_Part):
    """The source of a delta: its filter limits the detection of deleted rows."""

    name: str
    incremental: bool = False
    increment_filter: str | None = None
    static_filter: str | None = None
    increment_policies: tuple[IncrementPolicy, ...] = ()


class HashAs(_Part):
    """The decimal type in which a FLOAT is hashed, written `DECIMAL(p,s)`."""

    precision: int = Field(ge=1, le=38)
    scale: int = Field(ge=0, le=37)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        match = re.fullmatch(HASH_AS, value) if isinstance(value, str) else None
        return value if match is None else {"precision": int(match[1]), "scale": int(match[2])}

    @model_validator(mode="after")
    def _refuse_scale(self) -> Self:
        if self.scale > self.precision:
            raise ValueError("the scale is larger than the precision")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> Any:
        return {"anyOf": [{"type": "string", "pattern": HASH_AS}, handler.resolve_ref_schema(handler(core))]}


class ModelColumn(_Part):
    """A column of a base table or of its history."""

    target_column_name: ColumnName
    datatype: Datatype
    max_length: int | None = Field(default=None, gt=0)
    decimal_precision: int | None = Field(default=None, ge=1, le=38)
    decimal_scale: int | None = Field(default=None, ge=0, le=37)
    nullable: bool = True
    system_role: ColumnRole | None = None
    lineage_key: str | None = None
    key_name: str | None = None
    former_names: tuple[ColumnName, ...] = ()
    hash: bool = True
    hash_as: HashAs | None = None
    active: bool = True
    retired_at: str | None = None
    is_system_managed: bool = False
    description: str | None = None
    input: str | None = None

    @property
    def name(self) -> str:
        """The name of the column in the table."""
        return self.target_column_name

    @property
    def source(self) -> str:
        """The name of the column to load from: in the stage or, for a history, in the base."""
        return self.input or self.name


class KeyComponent(_Part):
    """A column of the child, and the business key column of the parent that has the same values."""

    from_: ColumnName = Field(alias="from")
    to: ColumnName

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ForeignKey(_Part):
    """The parent's key, computed from the child's columns. An inactive foreign key adds no column."""

    id: int | str
    referenced_dataset: DatasetName
    reference_prefix: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")] | None = None
    key_components: tuple[KeyComponent, ...] = Field(min_length=1)
    active: bool = True

    @property
    def column(self) -> str:
        """The name of the foreign key column."""
        prefix = f"{self.reference_prefix}_" if self.reference_prefix else ""
        return f"{prefix}{self.referenced_dataset}_key"


class EffectiveDating(_Part):
    """The column with the time from which a row is true in the real world (section 7.1)."""

    column: ColumnName
    granularity: Literal["timestamp", "date"] = "timestamp"
    late_policy: Literal["accept", "reject"] = "accept"


class StateLabels(_Part):
    """Labels for the states of versions (section 7.2)."""

    new: Label = "new"
    changed: Label = "changed"
    deleted: Label = "deleted"
    reappeared: Label = Field(default_factory=lambda labels: labels.get("new", "new"))
    mode: Literal["view", "stored"] = "view"


def stored_labels(labels: StateLabels | None) -> StateLabels:
    """The labels that the table stores for a model's labels."""
    return labels if labels and labels.mode == "stored" else StateLabels()


def words_of(labels: StateLabels) -> dict[State, str]:
    """The label of each state."""
    return {state: getattr(labels, state) for state in State}


def label_changes(before: StateLabels, after: StateLabels) -> dict[str, str]:
    """A mapping of changed labels to their new labels.

    If several states had the same label, the first state in the order of `State` determines the new label.
    """
    old, new = words_of(before), words_of(after)
    pairs = {old[state]: new[state] for state in reversed(State)}
    return {old: new for old, new in pairs.items() if old != new}


class SoftDelete(_Part):
    """A flag in the base that marks a deletion (section 7.3)."""

    column: ColumnName
    deleted_values: tuple[str, ...] = Field(("true",), min_length=1)
    deleted_at: ColumnName | None = None
    on_delete: Literal["delete", "flag"] = "delete"


class Historization(_Part):
    """The rules for loading a history."""

    engine: Literal["auto", "four_step", "merge"] = "auto"
    snapshot: Literal["full", "partial"] = "full"
    delete_scope: str | None = None
    max_delete_ratio: float | None = Field(default=None, ge=0, le=1)
    allow_empty_snapshot: bool = False
    duplicate_keys: Literal["reject", "collapse_identical"] = "reject"
    reappear_state: Literal["new"] = "new"
    on_incompatible_type: Literal["block", "fork"] = "block"
    effective_dating: EffectiveDating | None = None
    state_labels: StateLabels | None = None
    soft_delete: SoftDelete | None = None
    allow_prune: bool = False
    keep_last: bool = True


class HistState(_Part):
    """The history's own metadata, written by the tool."""

    target_dataset_name: DatasetName
    lineage_key: str
    former_names: tuple[DatasetName, ...] = ()
    hash_profile: str | None = None
    state_labels: StateLabels | None = None
    prune_watermark: str | None = None
    active: bool = True
    target_columns: tuple[ModelColumn, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names that the table may have: its current name, followed by former names, latest first."""
        return [self.target_dataset_name, *reversed(self.former_names)]


class StageFile(_Part):
    """The format of an input's CSV file, as options of `snapshot`.

    None means that the reader's default applies.
    """

    separator: str | None = None
    encoding: str | None = None
    decimal: str | None = None
    null: str | None = None
    quote: str | None = None

    def options(self) -> FileOptions:
        """The options for a reader. Raises UsageError for values that no reader accepts."""
        return FileOptions(**self.model_dump())


class ModelDataset(_Part):
    """A base table, its source, and the rules for its history."""

    target_schema: str
    target_dataset_name: DatasetName
    lineage_key: str | None = None
    former_names: tuple[DatasetName, ...] = ()
    input: str | None = None
    read: StageFile = StageFile()
    historize: bool | None = None
    handle_deletes: bool = True
    incremental_strategy: Literal["full", "append", "merge", "snapshot", "historize"] | None = None
    incremental_source: str | None = None
    materialization_type: Literal["table"] | None = None
    active: bool = True
    retired_at: str | None = None
    is_system_managed: bool = False
    description: str | None = None
    target_columns: tuple[ModelColumn, ...] = Field(min_length=1)
    references: tuple[ForeignKey, ...] = ()
    historization: Historization = Historization()
    hist_state: HistState | None = None

    @property
    def name(self) -> str:
        """The name of the base table."""
        return self.target_dataset_name

    @property
    def hist_name(self) -> str:
        """The name of the history table."""
        return f"{self.name}_hist"

    @property
    def names(self) -> list[str]:
        """The names that the base may have: its current name, followed by former names, latest first."""
        return [self.name, *reversed(self.former_names)]

    @property
    def hist_names(self) -> list[str]:
        """The names that the history may have, in the same order."""
        return [f"{name}_hist" for name in self.names]

    @property
    def key(self) -> str:
        """The column of the base's surrogate key, which is the history's entity key."""
        return f"{self.name}_key"

    @property
    def hist_key(self) -> str:
        """The column of the history's surrogate key."""
        return f"{self.hist_name}_key"


class Model(_Part):
    """A whole model document."""

    format: Literal["historize/1"]
    environment: str = "dev"
    dialect: str = "spark"
    hash_profile: Literal["elevata_v1", "strict_v2"] = "elevata_v1"
    target_schemas: tuple[TargetSchema, ...] = Field(min_length=1)
    source_datasets: tuple[SourceDataset, ...] = ()
    target_datasets: tuple[ModelDataset, ...] = Field(min_length=1)


HASH_LENGTH = 64
STATE_LENGTH = 20
# The separator between the name of a forked column and the instant until which it was in use.
FORKED = "__until_"
# The number of characters of a column's name that precede FORKED.
LONGEST_FORKED = 63 - len(f"{FORKED}20250101000000")
# The order of the history's last columns.
TAIL = (
    ColumnRole.ROW_HASH,
    ColumnRole.STARTED,
    ColumnRole.ENDED,
    ColumnRole.STATE,
    ColumnRole.LOAD_RUN_ID,
    ColumnRole.LOADED_AT,
)
_TIMES = {ColumnRole.STARTED, ColumnRole.ENDED, ColumnRole.LOADED_AT}


def technical_column(
    name: str, role: ColumnRole, *, nullable: bool = False, former: Sequence[str] = ()
) -> ModelColumn:
    """A column that the tool generates.

    Its type is STRING(64) for hashes and run ids, STRING(20) for states, and TIMESTAMP for all others.
    """
    length = STATE_LENGTH if role is ColumnRole.STATE else HASH_LENGTH
    instant = role in _TIMES
    return ModelColumn(
        target_column_name=name,
        datatype=Datatype.TIMESTAMP if instant else Datatype.STRING,
        max_length=None if instant else length,
        nullable=nullable,
        system_role=role,
        former_names=tuple(former),
        is_system_managed=True,
    )


def declared_columns(dataset: ModelDataset) -> list[ModelColumn]:
    """The columns that the model names, including inactive ones."""
    return [column for column in dataset.target_columns if column.system_role not in GENERATED]


def user_columns(dataset: ModelDataset) -> list[ModelColumn]:
    """The columns that are loaded: business keys and attributes, in the model's order."""
    return [column for column in declared_columns(dataset) if column.active]


def business_keys(dataset: ModelDataset) -> list[ModelColumn]:
    """The columns that identify a record."""
    return [column for column in user_columns(dataset) if column.system_role is ColumnRole.BUSINESS_KEY]


def foreign_keys(dataset: ModelDataset) -> list[ModelColumn]:
    """The foreign key column of each active reference."""
    return [
        technical_column(reference.column, ColumnRole.FOREIGN_KEY, nullable=True).model_copy(
            update={"lineage_key": f"fk:{reference.id}"}
        )
        for reference in dataset.references
        if reference.active
    ]


def base_columns(dataset: ModelDataset) -> list[ModelColumn]:
    """Every column of the base table: key, the model's columns, foreign keys, hash and load columns."""
    return _with_technical(dataset, user_columns(dataset))


def every_column(dataset: ModelDataset) -> list[ModelColumn]:
    """Every column of the base table, including inactive ones."""
    return _with_technical(dataset, declared_columns(dataset))


def _with_technical(dataset: ModelDataset, columns: Sequence[ModelColumn]) -> list[ModelColumn]:
    key_names = [f"{former}_key" for former in dataset.former_names]
    return [
        technical_column(dataset.key, ColumnRole.SURROGATE_KEY, former=key_names),
        *columns,
        *foreign_keys(dataset),
        technical_column(ColumnRole.ROW_HASH, ColumnRole.ROW_HASH),
        technical_column(ColumnRole.LOAD_RUN_ID, ColumnRole.LOAD_RUN_ID),
        technical_column(ColumnRole.LOADED_AT, ColumnRole.LOADED_AT),
    ]


def mirrored_columns(columns: Sequence[ModelColumn]) -> list[ModelColumn]:
    """The base's columns that a history copies."""
    return [column for column in columns if column.system_role not in TECHNICAL | {ColumnRole.SURROGATE_KEY}]


def hashed_columns(dataset: ModelDataset) -> list[ModelColumn]:
    """The columns that a row hash covers, in the base's order: the loaded attributes (sections 2.4, 7.3)."""
    soft = dataset.historization.soft_delete
    flags = {soft.column, soft.deleted_at} if soft else set()
    return [
        column
        for column in user_columns(dataset)
        if column.system_role is None and column.hash and column.name not in flags
    ]


def key_name(column: ModelColumn) -> str:
    """The name of a business key within the surrogate key: the pinned name, or else the stage's name."""
    return column.key_name or column.source


def identity(column: ModelColumn) -> str:
    """The name of an attribute within a strict hash: the pinned name, or else its first name ever."""
    return column.key_name or (column.former_names[0] if column.former_names else column.name)


STRICT = "strict_v2"
