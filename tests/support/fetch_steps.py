"""Fetch steps as manifests define them, in short."""

from backstory.doors.odf.manifest.events import FilesGlob, FromPath, Url


def from_path(pattern, timestamp_format="%Y-%m-%d"):
    return FromPath(pattern=pattern, timestampFormat=timestamp_format)


def url_step(url, headers=(), event_time=None, *, once=False, always=False):
    return Url(
        url=url,
        headers=[{"name": name, "value": value} for name, value in headers],
        eventTime=event_time,
        cache="Forever" if once else None,
        refetch="always" if always else None,
    )


def glob_step(path, event_time=None, *, by_event_time=False, once=False):
    return FilesGlob(
        path=path,
        eventTime=event_time,
        order="ByEventTime" if by_event_time else "ByName",
        cache="Forever" if once else None,
    )
