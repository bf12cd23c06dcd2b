"""A dataset's manifest: its envelope and its events (sections 1.1 and 1.2)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from backstory.doors.odf.manifest.data_schema import DataSchema
from backstory.doors.odf.manifest.fetch import Fetch
from backstory.doors.odf.manifest.merge import Merge
from backstory.doors.odf.manifest.part import ByKind, Part, cased, worded, wrong
from backstory.doors.odf.manifest.read import Prepare, Preprocess, Read

NAME = r"^([a-zA-Z0-9]+([-.][a-zA-Z0-9]+)*/)?[a-zA-Z0-9]+([-.][a-zA-Z0-9]+)*$"

# Events of a dataset's history that no manifest has (R5).
BY_THE_SYSTEM = ("Seed", "AddData", "ExecuteTransform")
WRITTEN = "{} is an event that the system writes itself"
REMEDY = "Remove it from the manifest."

# The bytes of an Arrow schema; the format calls it deprecated.
OLD_SCHEMA = "rawArrowSchema"
IN_FIELDS = "Write schema: {fields: [{name: city, type: String}, ...]}."

ColumnName = Annotated[str, StringConstraints(min_length=1)]


class SetPollingSource(Part):
    """A source that pulls ask."""

    kind: Annotated[Literal["SetPollingSource"], cased("SetPollingSource")] = "SetPollingSource"
    fetch: Fetch
    prepare: tuple[Prepare, ...] = ()
    read: Read
    preprocess: Preprocess | None = None
    merge: Merge


class AddPushSource(Part):
    """A source that accepts pushed files."""

    kind: Annotated[Literal["AddPushSource"], cased("AddPushSource")] = "AddPushSource"
    source_name: str = "default"
    read: Read
    preprocess: Preprocess | None = None
    merge: Merge


class DisablePollingSource(Part):
    """The source is not asked any more."""

    kind: Annotated[Literal["DisablePollingSource"], cased("DisablePollingSource")] = "DisablePollingSource"


class DisablePushSource(Part):
    """The source does not accept files any more."""

    kind: Annotated[Literal["DisablePushSource"], cased("DisablePushSource")] = "DisablePushSource"
    source_name: str


class SetVocab(Part):
    """The names of the system columns."""

    kind: Annotated[Literal["SetVocab"], cased("SetVocab")] = "SetVocab"
    offset_column: ColumnName = "offset"
    operation_type_column: ColumnName = "op"
    system_time_column: ColumnName = "system_time"
    event_time_column: ColumnName = "event_time"


class SetInfo(Part):
    """A description of the dataset."""

    kind: Annotated[Literal["SetInfo"], cased("SetInfo")] = "SetInfo"
    description: str | None = None
    keywords: tuple[str, ...] | None = None


class SetLicense(Part):
    """The licence of the data."""

    kind: Annotated[Literal["SetLicense"], cased("SetLicense")] = "SetLicense"
    short_name: str
    name: str
    website_url: str
    spdx_id: str | None = None


class Attachment(Part):
    """A text that belongs to the dataset."""

    path: str
    content: str


class Embedded(Part):
    """Texts within the manifest."""

    kind: Annotated[Literal["Embedded"], cased("Embedded")] = "Embedded"
    items: tuple[Attachment, ...]


Attachments = Annotated[Embedded, ByKind("attachments")]


class SetAttachments(Part):
    """Texts that belong to the dataset."""

    kind: Annotated[Literal["SetAttachments"], cased("SetAttachments")] = "SetAttachments"
    attachments: Attachments


class SetDataSchema(Part):
    """The dataset's columns."""

    kind: Annotated[Literal["SetDataSchema"], cased("SetDataSchema")] = "SetDataSchema"
    schema_: DataSchema = Field(alias="schema")

    @model_validator(mode="before")
    @classmethod
    def _in_the_newer_form(cls, written: Any) -> Any:
        if isinstance(written, Mapping) and OLD_SCHEMA in written:
            raise wrong(f"{OLD_SCHEMA}, the older form, is not supported", IN_FIELDS, OLD_SCHEMA)
        return written


class SetTransform(Part):
    """For derivative datasets, which are not supported."""

    kind: Annotated[Literal["SetTransform"], cased("SetTransform")] = "SetTransform"
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
    ByKind("event", refused={kind.lower(): (WRITTEN.format(kind), REMEDY) for kind in BY_THE_SYSTEM}),
]


class DatasetKind(StrEnum):
    """Whether data comes from outside or from other datasets."""

    ROOT = "Root"
    DERIVATIVE = "Derivative"


class DatasetContent(Part):
    """The dataset."""

    name: Annotated[str, StringConstraints(pattern=NAME)]
    kind: Annotated[DatasetKind, worded(DatasetKind)]
    metadata: tuple[Event, ...]


class DatasetSnapshot(Part):
    """The document."""

    kind: Annotated[Literal["DatasetSnapshot"], cased("DatasetSnapshot")]
    version: Literal[1]
    content: DatasetContent
