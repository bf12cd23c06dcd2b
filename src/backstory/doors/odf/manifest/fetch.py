"""Where the data of a polling source comes from (sections 1.3 and 1.4)."""

import re
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from backstory.doors.odf.manifest.part import ByKind, Part, cased, worded, wrong


def _with_a_group(pattern: str) -> str:
    try:
        groups = re.compile(pattern).groups
    except re.error as broken:
        raise wrong(f"this is not a regular expression: {broken}", "Fix the pattern.") from None
    if not groups:
        raise wrong("the pattern has no group", "Put parentheses around the part that is the time.")
    return pattern


class FromMetadata(Part):
    """The time in the source's metadata: the caching headers, or the file's modification time."""

    kind: Annotated[Literal["FromMetadata"], cased("FromMetadata")] = "FromMetadata"


class FromSystemTime(Part):
    """The time of the run."""

    kind: Annotated[Literal["FromSystemTime"], cased("FromSystemTime")] = "FromSystemTime"


class FromPath(Part):
    """The time in a file's path: group 1 of the pattern, in a format of strftime or of Java."""

    kind: Annotated[Literal["FromPath"], cased("FromPath")] = "FromPath"
    pattern: Annotated[str, AfterValidator(_with_a_group)]
    timestamp_format: str = "%Y-%m-%d"


class Forever(Part):
    """Never ask a source again after it was ingested once."""

    kind: Annotated[Literal["Forever"], cased("Forever")] = "Forever"


EventTime = Annotated[FromMetadata | FromSystemTime | FromPath, ByKind("event time", short=True)]
Caching = Annotated[Forever, ByKind("cache", short=True)]


class Order(StrEnum):
    """In which order the files of a glob are ingested."""

    BY_EVENT_TIME = "ByEventTime"
    BY_NAME = "ByName"


class Refetch(StrEnum):
    """When a source that says nothing of its changes is asked again (an extension, D21)."""

    ALWAYS = "always"


class Header(Part):
    """A header of an HTTP request; the value may be a template."""

    name: str
    value: str


class Url(Part):
    """One resource: `http`, `https`, `ftp` or `file`; a relative path starts at the manifest's folder."""

    kind: Annotated[Literal["Url"], cased("Url")] = "Url"
    url: str
    event_time: EventTime | None = None
    cache: Caching | None = None
    headers: tuple[Header, ...] = ()
    refetch: Annotated[Refetch, worded(Refetch)] | None = None


class FilesGlob(Part):
    """Files of this machine, each a delivery of its own."""

    kind: Annotated[Literal["FilesGlob"], cased("FilesGlob")] = "FilesGlob"
    path: str
    event_time: EventTime | None = None
    cache: Caching | None = None
    order: Annotated[Order, worded(Order)] = Order.BY_NAME
    refetch: Annotated[Refetch, worded(Refetch)] | None = None


class EnvironmentVariable(Part):
    """A variable of a container; without a value it is the host's."""

    name: str
    value: str | None = None


class Container(Part):
    """A program in a container; parsed, and refused when pulled (decision O12)."""

    kind: Annotated[Literal["Container"], cased("Container")] = "Container"
    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[EnvironmentVariable, ...] = ()


class Quality(StrEnum):
    """How often a message may come."""

    AT_MOST_ONCE = "AtMostOnce"
    AT_LEAST_ONCE = "AtLeastOnce"
    EXACTLY_ONCE = "ExactlyOnce"


class Topic(Part):
    """A topic of a broker."""

    path: str
    qos: Annotated[Quality, worded(Quality)] = Quality.AT_MOST_ONCE


class Mqtt(Part):
    """Messages of a broker; parsed, and refused when pulled (decision O12)."""

    kind: Annotated[Literal["Mqtt"], cased("Mqtt")] = "Mqtt"
    host: str
    port: int
    topics: tuple[Topic, ...] = Field(min_length=1)
    username: str | None = None
    password: str | None = None


class EthereumLogs(Part):
    """Logs of a chain; parsed, and refused when pulled (decision O12). `EvmLogs` is its newer name."""

    kind: Annotated[Literal["EthereumLogs"], cased("EthereumLogs")] = "EthereumLogs"
    chain_id: Annotated[int, Field(ge=0)] | None = None
    node_url: str | None = None
    filter: str | None = None
    signature: str | None = None

    @model_validator(mode="after")
    def _has_a_place(self) -> Self:
        if self.chain_id is None and self.node_url is None:
            raise wrong("these logs have neither chainId nor nodeUrl", "Set one of them.")
        return self


class EvmLogs(EthereumLogs):
    """The newer name of EthereumLogs."""

    kind: Annotated[Literal["EvmLogs"], cased("EvmLogs")] = "EvmLogs"  # type: ignore[assignment]


Fetch = Annotated[Url | FilesGlob | Container | Mqtt | EthereumLogs | EvmLogs, ByKind("fetch")]
