"""What no manifest may say although each of its parts is well formed; errors name path and line."""

from collections.abc import Sequence
from typing import Any, Final

from backstory.documents import Document, DocumentKind, DocumentPath
from backstory.doors.odf.manifest.events import (
    AddPushSource,
    DatasetKind,
    DatasetSnapshot,
    DisablePollingSource,
    DisablePushSource,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    SetVocab,
)
from backstory.doors.odf.manifest.merge import OBSERVED, encoding_of
from backstory.doors.odf.source_rules import look_at_schema, look_at_source
from backstory.strategies.events.terms import EventEncoding

MANIFEST: Final = DocumentKind("manifest", absent_code="no-manifest", wrong_code="wrong-manifest")

ROOT_ONLY: Final = "Only root datasets are kept here; write a derivative one as a query of its inputs."
CONTENT: Final = ("content", "metadata")


def refuse_broken_rules(snapshot: DatasetSnapshot, document: Document, *, known: bool) -> None:
    """Raise UsageError for the first rule that the manifest breaks."""
    if snapshot.content.kind is DatasetKind.DERIVATIVE:
        raise document.wrong(("content", "kind"), "this is a derivative dataset.", ROOT_ONLY)
    events = snapshot.content.metadata
    for number, event in enumerate(events):
        path = (*CONTENT, number)
        _look_at_event(event, document, path, known=known)
        if _newest_like(event, events[:number]) == event:
            raise document.wrong(path, "this event repeats what is already set.", "Remove one of the two.")
    _look_at_vocab(events, document)
    _look_at_sources(events, document)


def _look_at_event(event: Any, document: Document, path: DocumentPath, *, known: bool) -> None:
    match event:
        case SetTransform():
            raise document.wrong(path, "SetTransform belongs to derivative datasets.", ROOT_ONLY)
        case DisablePollingSource() | DisablePushSource() if not known:
            raise document.wrong(
                path, "a new dataset has no source to disable.", f"Remove {event.kind} and its source."
            )
        case SetPollingSource() | AddPushSource():
            look_at_source(event, document, path)
        case SetDataSchema():
            look_at_schema(event.schema_, document, (*path, "schema"))


def _newest_like(event: Any, before: Sequence[Any]) -> Any:
    """The newest event before that is about the same thing, a source being switched on or off included."""
    about = _about(event)
    return next((each for each in reversed(before) if _about(each) == about), None)


def _about(event: Any) -> tuple[str, str | None]:
    topic = event.kind.removeprefix("Set").removeprefix("Add").removeprefix("Disable")
    return topic, getattr(event, "source_name", None)


def _look_at_vocab(events: Sequence[Any], document: Document) -> None:
    """System columns have names of their own, the column `observed` included where there is one."""
    observed = any(encoding_of(each.merge) is EventEncoding.OBSERVED for each in events if _is_source(each))
    for number, event in enumerate(events):
        if not isinstance(event, SetVocab):
            continue
        taken = {OBSERVED} if observed else set()
        # Names by default take theirs first, so that the fault is one that stands in the document.
        fields = sorted(SetVocab.model_fields.items(), key=lambda each: each[0] in event.model_fields_set)
        for field, about in fields:
            if field == "kind":
                continue
            name = getattr(event, field)
            if name in taken:
                raise document.wrong(
                    (*CONTENT, number, str(about.alias)),
                    f"{name!r} is the name of another system column.",
                    "Rename one.",
                )
            taken.add(name)


def _look_at_sources(events: Sequence[Any], document: Document) -> None:
    """One polling source or push sources, and one encoding, for they write one table."""
    sources = [(number, event) for number, event in enumerate(events) if _is_source(event)]
    if not sources:
        return
    first, one = sources[0]
    for number, other in sources[1:]:
        if type(other) is not type(one):
            raise document.wrong(
                (*CONTENT, number),
                f"the dataset has {one.kind} already, on line {document.line((*CONTENT, first))}; "
                "a dataset has one polling source or push sources.",
                "Split it into two datasets.",
            )
    newest = {event.source_name: number for number, event in sources if isinstance(event, AddPushSource)}
    for number in newest.values():
        other, one = events[number], events[min(newest.values())]
        if encoding_of(other.merge) is not encoding_of(one.merge):
            raise document.wrong(
                (*CONTENT, number, "merge"),
                f"the push sources {one.source_name!r} and {other.source_name!r} write different columns.",
                "Use the same encoding in both.",
            )


def _is_source(event: Any) -> bool:
    return isinstance(event, SetPollingSource | AddPushSource)
