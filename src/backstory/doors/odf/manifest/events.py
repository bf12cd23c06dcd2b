"""The document of a manifest: its envelope, its events, and the steps of sources (sections 1.1 to 1.8)."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from backstory.doors.odf.manifest.data_schema import (
    ByKind,
    DataSchema,
    ManifestPart,
    any_case,
    any_case_of,
    wrong,
)
from backstory.strategies.events.terms import EventEncoding, OnConflict


class OnLate(StrEnum):
    """How to treat a snapshot that is older than the last snapshot."""

    WARN = "warn"
    ERROR = "error"


class Validation(StrEnum):
    """How strictly a changelog is checked."""

    STRICT = "strict"
    SCHEMA = "schema"


# The column of the observed encoding.
OBSERVED: Final = "observed"


class MergeStrategy(ManifestPart):
    """The field that all strategies share; None is the strategy's default encoding."""

    encoding: Annotated[EventEncoding, any_case_of(EventEncoding)] | None = None


class Append(MergeStrategy, kind="Append"):
    """Every delivered row is added."""


class Ledger(MergeStrategy, kind="Ledger"):
    """Events. Rows with a new key are added."""

    primary_key: tuple[str, ...]
    event_time_in_key: bool = True
    on_conflict: Annotated[OnConflict, any_case_of(OnConflict)] = OnConflict.IGNORE


class SnapshotMerge(MergeStrategy, kind="Snapshot"):
    """Full copies, whose changes are added. The last four fields belong to older versions (R11)."""

    primary_key: tuple[str, ...]
    compare_columns: tuple[str, ...] | None = None
    max_retract: Annotated[float, Field(ge=0, le=1)] | None = None
    on_late_snapshot: Annotated[OnLate, any_case_of(OnLate)] = OnLate.WARN
    observation_column: str | None = None
    obsv_added: str | None = None
    obsv_changed: str | None = None
    obsv_removed: str | None = None


class UpsertStream(MergeStrategy, kind="UpsertStream"):
    """Rows in the order of their arrival. The last row of each key is used."""

    primary_key: tuple[str, ...]
    sequence_column: str | None = None


class ChangelogStream(MergeStrategy, kind="ChangelogStream"):
    """Events with their operations: additions, retractions and corrections."""

    primary_key: tuple[str, ...]
    validation: Annotated[Validation, any_case_of(Validation)] = Validation.STRICT


Merge = Annotated[Append | Ledger | SnapshotMerge | UpsertStream | ChangelogStream, ByKind("merge")]


def encoding_of(merge: Merge) -> EventEncoding | None:
    """The encoding in which the table stores operations, or None if all events are additions."""
    if merge.encoding is not None:
        return merge.encoding
    if isinstance(merge, SnapshotMerge):
        return EventEncoding.OBSERVED
    return EventEncoding.OP if isinstance(merge, UpsertStream | ChangelogStream) else None


def key_of(merge: Merge) -> tuple[str, ...]:
    """The columns of the primary key, or an empty tuple for Append."""
    return () if isinstance(merge, Append) else merge.primary_key


def meaning_of(merge: Merge) -> tuple[str, tuple[str, ...], bool]:
    """The properties of a merge that determine the meaning of stored rows, besides their encoding."""
    return merge.kind, key_of(merge), isinstance(merge, Ledger) and merge.event_time_in_key


# Kinds of older versions, with message and remedy.
RENAMED: Final = {"jsonlines": ("JsonLines was renamed to NdJson", "Use NdJson.")}
NAME = r"^([a-zA-Z0-9]+([-.][a-zA-Z0-9]+)*/)?[a-zA-Z0-9]+([-.][a-zA-Z0-9]+)*$"
# Events of a dataset's history that a manifest must not contain (R5), with message and remedy.
BY_THE_SYSTEM = {
    kind.lower(): (f"{kind} is an event that the system writes itself", "Remove it from the manifest.")
    for kind in ("Seed", "AddData", "ExecuteTransform")
}
# The bytes of an Arrow schema, which are deprecated in the format.
OLD_SCHEMA = "rawArrowSchema"
IN_FIELDS = "Write schema: {fields: [{name: city, type: String}, ...]}."


def _with_a_group(pattern: str) -> str:
    try:
        groups = re.compile(pattern).groups
    except re.error as broken:
        raise wrong(f"this is not a regular expression: {broken}", "Fix the pattern.") from None
    if not groups:
        raise wrong("the pattern has no group", "Put parentheses around the part that is the time.")
    return pattern


class FromMetadata(ManifestPart, kind="FromMetadata"):
    """The time in the source's metadata: the caching headers, or the file's modification time."""


class FromSystemTime(ManifestPart, kind="FromSystemTime"):
    """The time of the run."""


class FromPath(ManifestPart, kind="FromPath"):
    """The time in a file's path: group 1 of the pattern, in a strftime or Java format."""

    pattern: Annotated[str, AfterValidator(_with_a_group)]
    timestamp_format: str = "%Y-%m-%d"


class Forever(ManifestPart, kind="Forever"):
    """Never fetch a source again after it was ingested once."""


EventTime = Annotated[FromMetadata | FromSystemTime | FromPath, ByKind("event time", short=True)]
Caching = Annotated[Forever, ByKind("cache", short=True)]


class Order(StrEnum):
    """The order in which the files of a glob are ingested."""

    BY_EVENT_TIME = "ByEventTime"
    BY_NAME = "ByName"


class Refetch(StrEnum):
    """When to fetch a source again if the source does not report whether it changed (an extension, D21)."""

    ALWAYS = "always"


class Header(ManifestPart):
    """A header of an HTTP request; the value may be a template."""

    name: str
    value: str


class Url(ManifestPart, kind="Url"):
    """One resource: `http`, `https`, `ftp` or `file`. A relative path is in the manifest's folder."""

    url: str
    event_time: EventTime | None = None
    cache: Caching | None = None
    headers: tuple[Header, ...] = ()
    refetch: Annotated[Refetch, any_case_of(Refetch)] | None = None


class FilesGlob(ManifestPart, kind="FilesGlob"):
    """Files on this machine. Each file is a separate delivery."""

    path: str
    event_time: EventTime | None = None
    cache: Caching | None = None
    order: Annotated[Order, any_case_of(Order)] = Order.BY_NAME
    refetch: Annotated[Refetch, any_case_of(Refetch)] | None = None


class EnvironmentVariable(ManifestPart):
    """A variable of a container; without a value, the host's value is used."""

    name: str
    value: str | None = None


class Container(ManifestPart, kind="Container"):
    """A program in a container. It is parsed, and refused when pulled (decision O12)."""

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[EnvironmentVariable, ...] = ()


class Quality(StrEnum):
    """How often a message may be delivered."""

    AT_MOST_ONCE = "AtMostOnce"
    AT_LEAST_ONCE = "AtLeastOnce"
    EXACTLY_ONCE = "ExactlyOnce"


class Topic(ManifestPart):
    """A topic of a broker."""

    path: str
    qos: Annotated[Quality, any_case_of(Quality)] = Quality.AT_MOST_ONCE


class Mqtt(ManifestPart, kind="Mqtt"):
    """Messages from a broker. They are parsed, and refused when pulled (decision O12)."""

    host: str
    port: int
    topics: tuple[Topic, ...] = Field(min_length=1)
    username: str | None = None
    password: str | None = None


class EthereumLogs(ManifestPart, kind="EthereumLogs"):
    """Logs of a blockchain, also named `EvmLogs`. They are parsed, and refused when pulled (decision O12)."""

    chain_id: Annotated[int, Field(ge=0)] | None = None
    node_url: str | None = None
    filter: str | None = None
    signature: str | None = None

    @model_validator(mode="after")
    def _has_a_place(self) -> Self:
        if self.chain_id is None and self.node_url is None:
            raise wrong("these logs have neither chainId nor nodeUrl", "Set one of them.")
        return self


class EvmLogs(EthereumLogs, kind="EvmLogs"):
    """The newer name of EthereumLogs."""


Fetch = Annotated[Url | FilesGlob | Container | Mqtt | EthereumLogs | EvmLogs, ByKind("fetch")]


class FileCompression(StrEnum):
    """The format of a compressed file."""

    GZIP = "Gzip"
    ZIP = "Zip"


class Decompress(ManifestPart, kind="Decompress"):
    """Unpack a file; `subPath` names the entry of a zip and may be a glob."""

    format: Annotated[FileCompression, any_case_of(FileCompression)]
    sub_path: str | None = None


class Pipe(ManifestPart, kind="Pipe"):
    """A program that reads the bytes and writes the result. No shell is used (decision O12)."""

    command: tuple[str, ...] = Field(min_length=1)


Prepare = Annotated[Decompress | Pipe, ByKind("prepare")]


class UnknownFields(StrEnum):
    """How to treat fields of the source that the schema does not name (an extension)."""

    IGNORE = "ignore"
    ERROR = "error"


def _no_list(schema: Any) -> Any:
    """Refuse a list, which was the form of schemas in versions before 0.38."""
    if isinstance(schema, list | tuple):
        raise wrong("a list of columns is the older form of a schema", "Rename it to ddlSchema.")
    return schema


class Reader(ManifestPart):
    """The fields that all readers share: a schema, in the newer or the older form, or none."""

    schema_: Annotated[DataSchema | None, BeforeValidator(_no_list)] = Field(None, alias="schema")
    ddl_schema: tuple[str, ...] | None = None
    unknown_fields: Annotated[UnknownFields, any_case_of(UnknownFields)] = UnknownFields.IGNORE


class Csv(Reader, kind="Csv"):
    """Comma-separated values; the options after `multiLine` were removed from the format (lint L9).

    Quoted values may contain line breaks, regardless of `multiLine` (decision O26).
    """

    separator: str = ","
    encoding: str = "utf8"
    quote: str = '"'
    escape: str = "\\"
    header: bool = False
    infer_schema: bool = False
    null_value: str = ""
    date_format: str = "rfc3339"
    timestamp_format: str = "rfc3339"
    multi_line: bool = False
    comment: str | None = None
    enforce_schema: bool | None = None
    ignore_leading_white_space: bool | None = None
    ignore_trailing_white_space: bool | None = None
    empty_value: str | None = None
    nan_value: str | None = None
    positive_inf: str | None = None
    negative_inf: str | None = None


# The former defaults and the replacements of options that were removed from Csv (section 1.6, L9).
REMOVED: Final[Mapping[str, tuple[str | bool | None, str]]] = {
    "comment": (None, "filter such rows in preprocess"),
    "enforce_schema": (True, "columns are matched by name when there is a header"),
    "ignore_leading_white_space": (False, "use ltrim in preprocess"),
    "ignore_trailing_white_space": (False, "use rtrim in preprocess"),
    "empty_value": ("", "use nullif or coalesce in preprocess"),
    "nan_value": ("NaN", "read a text and cast it in preprocess"),
    "positive_inf": ("Inf", "read a text and cast it in preprocess"),
    "negative_inf": ("-Inf", "read a text and cast it in preprocess"),
}


class Json(Reader, kind="Json"):
    """An array of objects, at the root or at a dotted path."""

    sub_path: str | None = None
    date_format: str = "rfc3339"
    timestamp_format: str = "rfc3339"
    encoding: str = "utf8"


class NdJson(Reader, kind="NdJson"):
    """One object on each line."""

    date_format: str = "rfc3339"
    timestamp_format: str = "rfc3339"
    encoding: str = "utf8"


class GeoJson(Reader, kind="GeoJson"):
    """A FeatureCollection."""


class NdGeoJson(Reader, kind="NdGeoJson"):
    """One feature on each line."""


class EsriShapefile(Reader, kind="EsriShapefile"):
    """A zip with one shapefile; with several, `subPath` selects one."""

    sub_path: str | None = None


class Parquet(Reader, kind="Parquet"):
    """A Parquet file; a schema selects columns by name and converts their types."""


Read = Annotated[
    Csv | Json | NdJson | GeoJson | NdGeoJson | EsriShapefile | Parquet, ByKind("read", refused=RENAMED)
]


class QueryStep(ManifestPart):
    """One of several queries; the query without an alias is the output."""

    alias: str | None = None
    query: str


class TemporalTable(ManifestPart):
    """A temporal table of Flink. It is parsed, and refused with its engine."""

    name: str
    primary_key: tuple[str, ...]


class Sql(ManifestPart, kind="Sql"):
    """SQL over the table `input`."""

    engine: str = "spark"
    version: str | None = None
    query: str | None = None
    queries: tuple[QueryStep, ...] | None = None
    temporal_tables: tuple[TemporalTable, ...] | None = None


Preprocess = Annotated[Sql, ByKind("preprocess")]


ColumnName = Annotated[str, StringConstraints(min_length=1)]


class SetPollingSource(ManifestPart, kind="SetPollingSource"):
    """A source from which pulls fetch data."""

    fetch: Fetch
    prepare: tuple[Prepare, ...] = ()
    read: Read
    preprocess: Preprocess | None = None
    merge: Merge


class AddPushSource(ManifestPart, kind="AddPushSource"):
    """A source that accepts pushed files."""

    source_name: str = "default"
    read: Read
    preprocess: Preprocess | None = None
    merge: Merge


class DisablePollingSource(ManifestPart, kind="DisablePollingSource"):
    """Stop fetching from the polling source."""


class DisablePushSource(ManifestPart, kind="DisablePushSource"):
    """Stop accepting files for a push source."""

    source_name: str


class SetVocab(ManifestPart, kind="SetVocab"):
    """The names of the system columns."""

    offset_column: ColumnName = "offset"
    operation_type_column: ColumnName = "op"
    system_time_column: ColumnName = "system_time"
    event_time_column: ColumnName = "event_time"


class SetInfo(ManifestPart, kind="SetInfo"):
    """A description of the dataset."""

    description: str | None = None
    keywords: tuple[str, ...] | None = None


class SetLicense(ManifestPart, kind="SetLicense"):
    """The licence of the data."""

    short_name: str
    name: str
    website_url: str
    spdx_id: str | None = None


class Attachment(ManifestPart):
    """A text that belongs to the dataset."""

    path: str
    content: str


class Embedded(ManifestPart, kind="Embedded"):
    """Texts within the manifest."""

    items: tuple[Attachment, ...]


Attachments = Annotated[Embedded, ByKind("attachments")]


class SetAttachments(ManifestPart, kind="SetAttachments"):
    """Texts that belong to the dataset."""

    attachments: Attachments


class SetDataSchema(ManifestPart, kind="SetDataSchema"):
    """The dataset's columns."""

    schema_: DataSchema = Field(alias="schema")

    @model_validator(mode="before")
    @classmethod
    def _in_the_newer_form(cls, written: Any) -> Any:
        if isinstance(written, Mapping) and OLD_SCHEMA in written:
            raise wrong(f"{OLD_SCHEMA}, the older form, is not supported", IN_FIELDS, OLD_SCHEMA)
        return written


class SetTransform(ManifestPart, kind="SetTransform"):
    """The transformation of a derivative dataset. It is refused."""

    inputs: tuple[Any, ...] = ()
    transform: Any = None


Event = Annotated[
    SetPollingSource
    | AddPushSource
    | DisablePollingSource
    | DisablePushSource
    | SetVocab
    | SetInfo
    | SetLicense
    | SetAttachments
    | SetDataSchema
    | SetTransform,
    ByKind("event", refused=BY_THE_SYSTEM),
]


class DatasetKind(StrEnum):
    """The origin of data: a source outside, or other datasets."""

    ROOT = "Root"
    DERIVATIVE = "Derivative"


class DatasetContent(ManifestPart):
    """The dataset: its name and its events."""

    name: Annotated[str, StringConstraints(pattern=NAME)]
    kind: Annotated[DatasetKind, any_case_of(DatasetKind)]
    metadata: tuple[Event, ...]


class DatasetSnapshot(ManifestPart):
    """The whole document."""

    kind: Annotated[Literal["DatasetSnapshot"], any_case("DatasetSnapshot")]
    version: Literal[1]
    content: DatasetContent
