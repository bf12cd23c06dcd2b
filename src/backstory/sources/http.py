"""A resource of an HTTP server as a source: it is asked whether it changed, and downloaded if it did."""

from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from typing import Final

import httpx2

from backstory.errors import UsageError
from backstory.model.instant import parse_instant
from backstory.sources import savepoint
from backstory.sources.asking import CHECKING, PASSED_OVER, Asking
from backstory.sources.fetched import Answer, Fetched, Kept
from backstory.sources.request import FileRequest, Headers, new_client, no_address
from backstory.sources.retries import retry_requests
from backstory.sources.savepoint import Savepoint
from backstory.sources.secrecy import private_parts, without_secrets
from backstory.sources.source import Resource, SystemTime
from backstory.sources.source_state import ETAG, LAST_MODIFIED, SourceState, of_kind, written
from backstory.sources.templates import filled, secrets_of
from backstory.sources.transfer import BodyPart, tag_of, transfer_bytes

NO_STATE: Final = f"{{name}} sends neither an ETag nor a modification time: {PASSED_OVER}"


def fetch_http(step: Resource, url: str, asking: Asking) -> Answer:
    """What the server has: nothing new, or a file in the cache, perhaps one that an earlier run kept.

    Raises Failed when it is not there, TryAgain when the server gives nothing now, after several attempts.
    """
    forced = asking.fetch_uncacheable or step.always
    if asking.asked_before and asking.state is None and not forced:
        return Answer("uncacheable")
    target = _request_to(step, url, asking)
    place = savepoint.place_of(step, asking)
    asked = savepoint.digest(url, [[name.decode(), value.decode()] for name, value in target.headers])
    # Without a state a kept download cannot be told from one that was ingested: who insists, asks.
    if not asking.refetch and not (forced and asking.state is None):
        taken = savepoint.take_up(place, asked)
        if taken is not None:
            point, own = taken
            return Answer("new", iter((_fetched(step, asking, place, point, own, taken=True),)))
    return _downloaded(step, target, place, asked, asking)


def _downloaded(step: Resource, target: FileRequest, place: Path, asked: str, asking: Asking) -> Answer:
    part = BodyPart(savepoint.new_file(place, ".part"), limit=asking.unpacked_limit)
    savepoint.sweep(asking.cache)
    conditions = _conditions(asking.state)

    def attempt() -> httpx2.Headers | None:
        asking.progress(CHECKING, 0, None)
        return transfer_bytes(client, target, conditions, part, asking.progress)

    try:
        with new_client() as client:
            headers = retry_requests(asking.retry, attempt)
        if headers is None:
            savepoint.discard(place)
            return Answer("up-to-date")
        modified = _instant(headers.get("Last-Modified"))
        state = _state(tag_of(headers), modified)
        data = part.path.with_suffix(".data").name
        point = Savepoint(datetime.now(UTC), asked, state, modified, data, part.size)
        own = savepoint.save(place, point, part.path)
    finally:
        part.path.unlink(missing_ok=True)
    warnings = [] if state or step.always else [NO_STATE.format(name=target.name)]
    return Answer("new", iter((_fetched(step, asking, place, point, own, taken=False),)), warnings)


def _fetched(
    step: Resource, asking: Asking, place: Path, point: Savepoint, own: Path, *, taken: bool
) -> Fetched:
    return Fetched(
        path=own,
        name=without_secrets(step.url),
        event_time=asking.system_time if isinstance(step.event_time, SystemTime) else point.event_time,
        state=point.state,
        taken_up=point.created_at if taken else None,
        kept=Kept(place.name, point.data),
    )


def _request_to(step: Resource, url: str, asking: Asking) -> FileRequest:
    values = [filled(value, asking.environment) for _, value in step.headers]
    names = [name.encode() for name, _ in step.headers]
    headers = [(name, value.encode()) for name, value in zip(names, values, strict=True)]
    try:
        secrets = private_parts(url, values)
    except ValueError:
        raise no_address() from None
    for text in (step.url, *(value for _, value in step.headers)):
        secrets |= secrets_of(text, asking.environment)
    return FileRequest(without_secrets(step.url), url, headers, frozenset(secrets))


def _conditions(state: SourceState | None) -> Headers:
    """The header that asks for nothing if nothing changed; a tag goes back exactly as it came."""
    tag, modified = of_kind(state, ETAG), of_kind(state, LAST_MODIFIED)
    if tag is not None:
        return [(b"If-None-Match", tag.encode("latin-1", "replace"))]
    if modified is not None:
        with suppress(UsageError):
            date = format_datetime(parse_instant(modified).replace(microsecond=0), usegmt=True)
            return [(b"If-Modified-Since", date.encode())]
    return []


def _state(tag: str | None, modified: datetime | None) -> SourceState | None:
    if tag is not None:
        return SourceState(ETAG, tag)
    return SourceState(LAST_MODIFIED, written(modified)) if modified is not None else None


def _instant(date: str | None) -> datetime | None:
    """The instant of a header's date; an unreadable one is none (RFC 9110, 8.8.2)."""
    try:
        found = parsedate_to_datetime(date or "")
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
