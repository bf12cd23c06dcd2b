"""What a source is asked for: one resource, or the files of this machine that a glob finds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetadataTime:
    """The time in the source's metadata: the caching headers, or the file's modification time."""


@dataclass(frozen=True, slots=True)
class SystemTime:
    """The time of the run."""


@dataclass(frozen=True, slots=True)
class PathTime:
    """The time in a file's path: group 1 of the pattern, in a format of strftime or of Java."""

    pattern: str
    timestamp_format: str = "%Y-%m-%d"


EventTime = MetadataTime | SystemTime | PathTime


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource: `http`, `https`, `ftp` or `file`; a relative path starts at the manifest's folder.

    Attributes:
        url: its address, a template.
        headers: of an HTTP request, names and values; the values are templates.
        event_time: where the time of rows without one comes from; None: as the scheme has it.
        once: never ask again when all of it was ingested.
        always: ask again even if the source says nothing of its changes.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    event_time: EventTime | None = None
    once: bool = False
    always: bool = False


@dataclass(frozen=True, slots=True)
class GlobOfFiles:
    """Files of this machine, each a delivery of its own.

    Attributes:
        path: the glob; a relative one is relative to the manifest's folder.
        event_time: where the time of rows without one comes from; None: the run.
        by_event_time: whether files are ordered by their times, then by their names.
        once: never look again when all files were ingested.
    """

    path: str
    event_time: EventTime | None = None
    by_event_time: bool = False
    once: bool = False


Source = Resource | GlobOfFiles
