"""The columns of base and history tables, the generated ones included (sections 1 and 2.1)."""

from collections.abc import Sequence

from backstory.doors.historize.model import GENERATED, TECHNICAL, ColumnRole, ModelColumn, ModelDataset
from backstory.stores.sql.columns import Datatype

HASH_LENGTH = 64
STATE_LENGTH = 20
# Between the name of a column that went another way and the instant until which it was in use.
FORKED = "__until_"
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


def technical(
    name: str, role: ColumnRole, *, nullable: bool = False, former: Sequence[str] = ()
) -> ModelColumn:
    """A generated column; hashes and run ids are STRING(64), states STRING(20), instants TIMESTAMP."""
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
    """The columns that the model names, inactive ones too."""
    return [column for column in dataset.target_columns if column.system_role not in GENERATED]


def user_columns(dataset: ModelDataset) -> list[ModelColumn]:
    """The columns that are loaded: business keys and attributes, in the model's order."""
    return [column for column in declared_columns(dataset) if column.active]


def business_keys(dataset: ModelDataset) -> list[ModelColumn]:
    """The columns that a record goes by."""
    return [column for column in user_columns(dataset) if column.system_role is ColumnRole.BUSINESS_KEY]


def foreign_keys(dataset: ModelDataset) -> list[ModelColumn]:
    """A column for each reference."""
    return [
        technical(reference.column, ColumnRole.FOREIGN_KEY, nullable=True).model_copy(
            update={"lineage_key": f"fk:{reference.id}"}
        )
        for reference in dataset.references
        if reference.active
    ]


def base_columns(dataset: ModelDataset) -> list[ModelColumn]:
    """Every column of the base table: key, the model's columns, foreign keys, hash and load columns."""
    return _framed(dataset, user_columns(dataset))


def every_column(dataset: ModelDataset) -> list[ModelColumn]:
    """The same with inactive columns."""
    return _framed(dataset, declared_columns(dataset))


def _framed(dataset: ModelDataset, columns: Sequence[ModelColumn]) -> list[ModelColumn]:
    key_names = [f"{former}_key" for former in dataset.former_names]
    return [
        technical(dataset.key, ColumnRole.SURROGATE_KEY, former=key_names),
        *columns,
        *foreign_keys(dataset),
        technical(ColumnRole.ROW_HASH, ColumnRole.ROW_HASH),
        technical(ColumnRole.LOAD_RUN_ID, ColumnRole.LOAD_RUN_ID),
        technical(ColumnRole.LOADED_AT, ColumnRole.LOADED_AT),
    ]


def mirrored(columns: Sequence[ModelColumn]) -> list[ModelColumn]:
    """The columns that a history copies from its base, by the base's own list."""
    return [column for column in columns if column.system_role not in TECHNICAL | {ColumnRole.SURROGATE_KEY}]


def hashed_columns(dataset: ModelDataset) -> list[ModelColumn]:
    """What a row hash covers, in the base's order: attributes that are loaded (sections 2.4, 7.3)."""
    soft = dataset.historization.soft_delete
    flags = {soft.column, soft.deleted_at} if soft else set()
    return [
        column
        for column in user_columns(dataset)
        if column.system_role is None and column.hash and column.name not in flags
    ]


def key_name(column: ModelColumn) -> str:
    """The name under which a business key goes into the key: pinned, else that of the stage."""
    return column.key_name or column.input or column.name


def identity(column: ModelColumn) -> str:
    """The name under which an attribute goes into a strict hash: pinned, else its first name ever."""
    return column.key_name or (column.former_names[0] if column.former_names else column.name)
