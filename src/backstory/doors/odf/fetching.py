"""The fetch step of a manifest in the words of `sources` (sections 1.3 and 1.4)."""

from backstory.doors.odf.manifest import fetch as manifest
from backstory.errors import UsageError
from backstory.sources import polling
from backstory.sources.source import (
    EventTime,
    GlobOfFiles,
    MetadataTime,
    PathTime,
    Resource,
    Source,
    SystemTime,
)


def source_of(step: manifest.Fetch) -> Source:
    """What the step asks for; UsageError `unsupported-source` for a kind that is parsed only (O12)."""
    match step:
        case manifest.Url():
            return Resource(
                step.url,
                tuple((header.name, header.value) for header in step.headers),
                _event_time(step.event_time),
                once=step.cache is not None,
                always=step.refetch is manifest.Refetch.ALWAYS,
            )
        case manifest.FilesGlob():
            return GlobOfFiles(
                step.path,
                _event_time(step.event_time),
                by_event_time=step.order is manifest.Order.BY_EVENT_TIME,
                once=step.cache is not None,
            )
    raise UsageError(
        "unsupported-source",
        f"Sources of kind {step.kind} cannot be pulled.",
        "Export its data to files or to an HTTP server, and fetch them with Url or FilesGlob.",
    )


def check(step: manifest.Fetch) -> None:
    """Raise UsageError if the step's scheme or event time cannot be had; other kinds are passed over."""
    if isinstance(step, manifest.Url | manifest.FilesGlob):
        polling.check(source_of(step))


def _event_time(told: manifest.EventTime | None) -> EventTime | None:
    match told:
        case manifest.FromMetadata():
            return MetadataTime()
        case manifest.FromSystemTime():
            return SystemTime()
        case manifest.FromPath():
            return PathTime(told.pattern, told.timestamp_format)
    return None
