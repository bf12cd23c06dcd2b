"""What columns and references of a model may not be (section 1.1)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from backstory.doors.historize.columns import business_keys, key_name, user_columns
from backstory.doors.historize.document import ModelDocument
from backstory.doors.historize.model import TECHNICAL, ColumnRole, Model, ModelColumn, ModelDataset
from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.placeholders import PLACEHOLDER

LONGEST = 63
Place = tuple[str | int, ...]


def refuse_columns(dataset: ModelDataset, document: ModelDocument, place: Place) -> None:
    """Names that the tool keeps for itself, that stand there twice, or that are too long."""
    reserved = {role.value for role in TECHNICAL} | {dataset.key, dataset.hist_key}
    reserved |= {reference.column for reference in dataset.references}
    for number, column in enumerate(dataset.target_columns):
        if column.name in reserved:
            raise document.wrong(
                (*place, "target_columns", number),
                f"{column.name} is a reserved name.",
                f"Rename the column to {column.name}_src.",
            )
    refuse_twice(
        document,
        "target_columns",
        [column.name for column in dataset.target_columns],
        place,
    )
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
    refuse_twice(document, "references", columns, place)
    for number, name in enumerate(columns):
        if len(name) > LONGEST:
            raise document.wrong(
                (*place, "references", number), f"its column {name} is longer than {LONGEST} characters."
            )
    if len(dataset.key) > LONGEST:
        raise document.wrong(
            (*place, "target_dataset_name"), f"the key {dataset.key} is longer than {LONGEST} characters."
        )


def refuse_placeholders(dataset: ModelDataset, document: ModelDocument, place: Place) -> None:
    """Names of the stage that hold what stands for a value in statements."""
    for number, column in enumerate(dataset.target_columns):
        for name in (column.input, column.key_name):
            if name is not None and PLACEHOLDER.search(name):
                raise document.wrong(
                    (*place, "target_columns", number),
                    f"a part of {name!r} looks like a placeholder of a statement.",
                    "Rename the column in the stage.",
                )


def refuse_references(dataset: ModelDataset, model: Model, document: ModelDocument, place: Place) -> None:
    """References to what is not there, or whose columns would make other keys than the parent's."""
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
            if _printed(child) != _printed(wanted[part.to]):
                raise document.wrong(
                    (*path, "key_components"),
                    f"{part.from_} is a {child.datatype} and {part.to} a {wanted[part.to].datatype}: "
                    "equal values would have different keys.",
                )


def _printed(column: ModelColumn) -> tuple[Any, ...]:
    """What decides how a value is written in a key."""
    if column.datatype in {Datatype.INTEGER, Datatype.BIGINT}:
        return (Datatype.BIGINT,)
    return column.datatype, column.decimal_scale, column.hash_as


def refuse_twice(
    document: ModelDocument, what: str, names: Iterable[str], place: Sequence[str | int] = ()
) -> None:
    """Names that are not unique."""
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            raise document.wrong((*place, what, number), f"{name} is named twice.")
        seen.add(name)
