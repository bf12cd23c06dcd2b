"""The format of a project file, `histories.yaml`: tables, groups of tables, models and datasets."""

import re
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from backstory.doors.native.options import ApplyRequest, SnapshotRequest
from backstory.model.instant import LONGEST
from backstory.model.options import declared_options
from backstory.model.values import split_list

# Options of the calls that the run or the table's name determines. The file must not contain them.
_OF_RUNS: Final = {"dry_run", "branch", "into"}
_EVERY: Final = re.compile(r"every (\d+)\s*(m|h|d|w)(?:in|inutes?|ours?|ays?|eeks?)?")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _as_names(value: Any) -> Any:
    return tuple(split_list(value)) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_names, json_schema_input_type=str | list[str])]


def pace_of(text: str) -> timedelta:
    """The greatest age of a table's last delivery, such as `every 26h`.

    Raises ValueError for other strings.
    """
    match = _EVERY.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise ValueError(text)
    try:
        pace = timedelta(**{_UNITS[match[2]]: int(match[1])})
    except OverflowError:
        raise ValueError(text) from None
    if pace > LONGEST:
        raise ValueError(text)
    return pace


def _require_pace(text: str) -> str:
    try:
        pace_of(text)
    except ValueError:
        raise PydanticCustomError(
            "pace",
            "pace",
            {
                "why": f"{text[:40]!r} is not a time between two deliveries",
                "remedy": "Write it as every 26h; m, h, d and w are units, 365000d is the longest.",
            },
        ) from None
    return text


class ProjectEntry(BaseModel):
    """A part of the file. Keys may have hyphens, as flags do: `max-delete-ratio`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _with_underscores(cls, written: Any) -> Any:
        if not isinstance(written, Mapping):
            return written
        spelled = {name: name.replace("-", "_") for name in written}
        known = {old: new if new in cls.model_fields else old for old, new in spelled.items()}
        if len(set(known.values())) < len(known):
            raise PydanticCustomError("twice", "a key is given in two spellings")
        return {known[name]: value for name, value in written.items()}


class ScheduledEntry(ProjectEntry):
    """The keys, common to all declarations, that determine when a declaration runs."""

    tags: Names = Field((), description="Words that select it: tag:nightly.")
    after: Names = Field((), description="Declarations that must succeed before it.")
    expect: Annotated[str, AfterValidator(_require_pace)] | None = Field(
        None, description="How often a delivery is expected: `every 26h`. See `backstory fresh`."
    )


def _options() -> dict[str, Any]:
    """The options of `snapshot` and `apply` as fields, with the descriptions from their docstrings."""
    fields: dict[str, Any] = {}
    for request in (ApplyRequest, SnapshotRequest):
        for option in sorted(declared_options(request)):
            if option.name not in _OF_RUNS:
                text = option.text.replace("=`", "`")
                fields[option.name] = (_written_type(option.hint) | None, Field(None, description=text))
    at = "The time of each copy: ISO 8601, `file` for the time of the file, `transaction` for the database's"
    fields["at"] = (str | None, Field(None, description=f"{at}, or a pattern with {{at:%Y-%m-%d}}."))
    return fields


def _written_type(hint: Any) -> Any:
    """The type of an option in YAML. A list may also be a string with comma-separated names."""
    lists = {Sequence[str], str | Sequence[str]}
    if any(hint == list_type or hint == list_type | None for list_type in lists):
        return Names
    return str if hint == str | date | None else hint


class GroupEntry(create_model("Options", __base__=ScheduledEntry, **_options())):  # type: ignore[misc]
    """Defaults for the tables of a group. `{table}` and `{schema}` are replaced with each table's name."""

    restart: bool | None = Field(
        None,
        description="Archive the history and begin a new one if the source returns with another key, or with "
        "columns that the table cannot take. Default: refuse such a copy.",
    )
    source: str | None = Field(
        None, description="A file, a folder, a glob, table:schema.table, or a database's address."
    )


class TableEntry(GroupEntry):
    """A table, with the options of `snapshot`, or of `apply` if it has `sequence_by` or `envelope`."""

    group: str | None = Field(None, description="The group whose defaults apply.")
    without: Names = Field(
        (),
        alias="except",
        description="For a pattern such as erp.*: names or patterns of tables that do not belong to it.",
    )


class ModelEntry(ScheduledEntry):
    """A model of `historize`."""

    file: str = Field(description="The model's YAML.")
    dataset: str | None = Field(None, description="Only this dataset of the model.")
    dialect: str | None = Field(None, description="Where it is loaded: spark, duckdb, postgres, ...")
    url: str | None = Field(None, description="The database's address, for other dialects than spark.")
    skip_base: bool = Field(default=False, description="Use the base table as it is.")
    allow_empty: bool = Field(default=False, description="Accept an empty stage.")
    max_delete_ratio: float | None = Field(
        None, description="The largest share of records that one load may delete."
    )


class DatasetEntry(ScheduledEntry):
    """An Open Data Fabric dataset: a manifest, or the name of a dataset in the warehouse."""

    file: str = Field(description="The manifest, or the dataset's name.")
    namespace: str = Field("odf", description="Schema of the dataset's table.")
    fetch_uncacheable: bool = Field(
        default=False, description="Fetch sources again that cannot report whether they changed."
    )


# The keys of all declarations.
FIELDS: Final = frozenset({*TableEntry.model_fields, *ModelEntry.model_fields, *DatasetEntry.model_fields})


def _as_file(value: Any) -> Any:
    return {"file": value} if isinstance(value, str) else value


_ModelOrFile = Annotated[ModelEntry, BeforeValidator(_as_file, json_schema_input_type=str | ModelEntry)]
_DatasetOrFile = Annotated[DatasetEntry, BeforeValidator(_as_file, json_schema_input_type=str | DatasetEntry)]


class Histories(ProjectEntry):
    """A whole project file."""

    format: Literal["histories/1"]
    defaults: GroupEntry = Field(GroupEntry(), description="Defaults for all tables.")
    groups: dict[str, GroupEntry] = Field({}, description="Defaults for groups of tables, by name.")
    tables: dict[str, TableEntry] = Field({}, description="Tables by name, schema.table.")
    models: tuple[_ModelOrFile, ...] = Field((), description="Models of `historize`.")
    datasets: tuple[_DatasetOrFile, ...] = Field((), description="Open Data Fabric datasets.")


def merge_entries(*entries: BaseModel) -> dict[str, Any]:
    """The keys of several entries. Later entries override others, but `tags` and `after` are joined."""
    merged: dict[str, Any] = {}
    for entry in entries:
        mine = {name: getattr(entry, name) for name in entry.model_fields_set}
        for name in ("tags", "after"):
            mine[name] = (*merged.get(name, ()), *mine.get(name, ()))
        merged |= mine
    return {name: value for name, value in merged.items() if value is not None}


def json_schema() -> dict[str, Any]:
    """The JSON Schema of project files, for editors."""
    schema = Histories.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "histories/1"}
