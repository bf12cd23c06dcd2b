"""The rules for manifests beyond the form of each part. Errors contain path and line."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from backstory.documents import Document, DocumentKind, DocumentPath
from backstory.doors.odf.manifest.data_schema import DataSchema, ddl_field
from backstory.doors.odf.manifest.events import (
    AddPushSource,
    Container,
    DatasetKind,
    DatasetSnapshot,
    DisablePollingSource,
    DisablePushSource,
    EthereumLogs,
    Fetch,
    Mqtt,
    Reader,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    SetVocab,
    Sql,
    Url,
)
from backstory.doors.odf.manifest.merge import OBSERVED, Ledger, Merge, SnapshotMerge, encoding_of
from backstory.errors import UsageError
from backstory.sources import templates
from backstory.strategies.events.terms import EventEncoding, OnConflict

ENGINES: Final = ("spark", "datafusion")
INPUT: Final = "input"

# The fields of older snapshots, each with its attribute and the only value that has its present meaning
# (R11).
OLD_FIELDS: Final[Mapping[str, tuple[str, str]]] = {
    "observationColumn": ("observation_column", OBSERVED),
    "obsvAdded": ("obsv_added", "I"),
    "obsvChanged": ("obsv_changed", "U"),
    "obsvRemoved": ("obsv_removed", "D"),
}

MANIFEST: Final = DocumentKind("manifest", absent_code="no-manifest", wrong_code="wrong-manifest")
ROOT_ONLY: Final = "Only root datasets are supported; write a derivative one as a query of its inputs."
CONTENT: Final = ("content", "metadata")


def check_source(source: SetPollingSource | AddPushSource, document: Document, path: DocumentPath) -> None:
    """Raise UsageError for the first rule that the source breaks."""
    if isinstance(source, SetPollingSource):
        _check_templates(source.fetch, document, (*path, "fetch"))
    _check_read(source.read, document, (*path, "read"))
    if source.preprocess is not None:
        _check_query(source.preprocess, document, (*path, "preprocess"))
    _check_merge(source.merge, document, (*path, "merge"))


def check_schema(schema: DataSchema, document: Document, path: DocumentPath) -> None:
    """Raise UsageError if two columns have the same name."""
    for number, name in _repeats([field.name for field in schema.fields_]):
        raise document.wrong((*path, "fields", number), f"the column {name!r} is named twice.")


def _check_templates(fetch: Fetch, document: Document, path: DocumentPath) -> None:
    for place, text in _template_texts(fetch):
        try:
            templates.check(text)
        except UsageError as broken:
            raise document.wrong((*path, *place), broken.message, broken.remedy, broken.code) from None


def _template_texts(fetch: Fetch) -> Iterator[tuple[DocumentPath, str]]:
    """The strings in a fetch that may contain templates (section 1.1)."""
    match fetch:
        case Url():
            yield ("url",), fetch.url
            yield from (
                (("headers", number, "value"), entry.value) for number, entry in enumerate(fetch.headers)
            )
        case Container():
            yield ("image",), fetch.image
            yield from ((("args", number), text) for number, text in enumerate(fetch.args))
            yield from (
                (("env", number, "value"), entry.value or "") for number, entry in enumerate(fetch.env)
            )
        case Mqtt():
            yield ("password",), fetch.password or ""
        case EthereumLogs():
            yield ("nodeUrl",), fetch.node_url or ""


def _check_read(read: Reader, document: Document, path: DocumentPath) -> None:
    if read.schema_ is not None and read.ddl_schema is not None:
        raise document.wrong(
            (*path, "ddlSchema"), "there are both schema and ddlSchema.", "Keep schema, the newer form."
        )
    if read.schema_ is not None:
        check_schema(read.schema_, document, (*path, "schema"))
    names = []
    for number, column in enumerate(read.ddl_schema or ()):
        try:
            names.append(ddl_field(column).name)
        except UsageError as broken:
            raise document.wrong((*path, "ddlSchema", number), broken.message, broken.remedy) from None
    for number, name in _repeats(names):
        raise document.wrong((*path, "ddlSchema", number), f"the column {name!r} is named twice.")


def _check_query(sql: Sql, document: Document, path: DocumentPath) -> None:
    if sql.engine.lower() not in ENGINES:
        raise document.wrong(
            (*path, "engine"),
            f"the engine {sql.engine!r} is not supported.",
            f"Supported engines are {', '.join(ENGINES)}.",
        )
    if sql.temporal_tables:
        raise document.wrong((*path, "temporalTables"), "only Flink has temporal tables.", "Use a join.")
    if (sql.query is None) == (sql.queries is None):
        problem = "neither query nor queries" if sql.query is None else "both query and queries"
        raise document.wrong(path, f"there is {problem}.", "Use exactly one of them.")
    if sql.queries is not None:
        _check_steps([step.alias for step in sql.queries], document, (*path, "queries"))


def _check_steps(aliases: Sequence[str | None], document: Document, path: DocumentPath) -> None:
    """Check aliases of query steps.

    Exactly one step, the output, has no alias. The other aliases are distinct, and not `input`.
    """
    output = [number for number, alias in enumerate(aliases) if alias is None]
    if not output:
        raise document.wrong(path, "every step has an alias.", "Remove the alias of the output.")
    if len(output) > 1:
        raise document.wrong(
            (*path, output[1]), "two steps have no alias.", "Only the output goes without an alias."
        )
    for number, name in _repeats([INPUT, *(alias or "" for alias in aliases)]):
        raise document.wrong(
            (*path, number - 1, "alias"), f"the table {name!r} exists already.", "Rename one."
        )


def _check_merge(merge: Merge, document: Document, path: DocumentPath) -> None:
    if merge.encoding is EventEncoding.OBSERVED and not isinstance(merge, SnapshotMerge):
        raise document.wrong(
            (*path, "encoding"),
            f"{merge.kind} does not support the encoding observed.",
            "Use op, or remove it.",
        )
    corrects = isinstance(merge, Ledger) and merge.on_conflict is OnConflict.CORRECT
    if corrects and encoding_of(merge) is not EventEncoding.OP:
        raise document.wrong(
            (*path, "onConflict"),
            "corrections are pairs of rows, which only the encoding op can express.",
            "Add encoding: op.",
        )
    if isinstance(merge, SnapshotMerge):
        for field, (attribute, value) in OLD_FIELDS.items():
            if getattr(merge, attribute) not in {None, value}:
                raise document.wrong(
                    (*path, field),
                    f"the column {OBSERVED} holds I, U and D; only older snapshots could use other values.",
                    f"Remove {field}, or set it to {value}.",
                )


def _repeats(names: Sequence[str]) -> Iterator[tuple[int, str]]:
    return ((number, name) for number, name in enumerate(names) if name in names[:number])


def refuse_broken_rules(snapshot: DatasetSnapshot, document: Document, *, known: bool) -> None:
    """Raise UsageError for the first rule that the manifest breaks."""
    if snapshot.content.kind is DatasetKind.DERIVATIVE:
        raise document.wrong(("content", "kind"), "this is a derivative dataset.", ROOT_ONLY)
    events = snapshot.content.metadata
    for number, event in enumerate(events):
        path = (*CONTENT, number)
        _check_event(event, document, path, known=known)
        if _newest_like(event, events[:number]) == event:
            raise document.wrong(path, "this event repeats an earlier one.", "Remove one of the two.")
    _check_vocab(events, document)
    _check_sources(events, document)


def _check_event(event: Any, document: Document, path: DocumentPath, *, known: bool) -> None:
    match event:
        case SetTransform():
            raise document.wrong(path, "SetTransform belongs to derivative datasets.", ROOT_ONLY)
        case DisablePollingSource() | DisablePushSource() if not known:
            raise document.wrong(
                path, "a new dataset has no source to disable.", f"Remove {event.kind} and its source."
            )
        case SetPollingSource() | AddPushSource():
            check_source(event, document, path)
        case SetDataSchema():
            check_schema(event.schema_, document, (*path, "schema"))


def _newest_like(event: Any, before: Sequence[Any]) -> Any:
    """The newest earlier event about the same topic. Disabling a source has the same topic as the source."""
    about = _topic(event)
    return next((earlier for earlier in reversed(before) if _topic(earlier) == about), None)


def _topic(event: Any) -> tuple[str, str | None]:
    topic = event.kind.removeprefix("Set").removeprefix("Add").removeprefix("Disable")
    return topic, getattr(event, "source_name", None)


def _check_vocab(events: Sequence[Any], document: Document) -> None:
    """Check that system columns have distinct names, including `observed` if a source uses it."""
    observed = any(encoding_of(each.merge) is EventEncoding.OBSERVED for each in events if _is_source(each))
    for number, event in enumerate(events):
        if not isinstance(event, SetVocab):
            continue
        taken = {OBSERVED} if observed else set()
        # Default names are taken first, so that the error refers to a name in the document.
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


def _check_sources(events: Sequence[Any], document: Document) -> None:
    """Check that there is either one polling source or only push sources.

    All sources must have the same encoding for their table.
    """
    sources = [(number, event) for number, event in enumerate(events) if _is_source(event)]
    if not sources:
        return
    first, first_source = sources[0]
    for number, other in sources[1:]:
        if type(other) is not type(first_source):
            raise document.wrong(
                (*CONTENT, number),
                f"the dataset has {first_source.kind} already, on line {document.line((*CONTENT, first))}; "
                "a dataset has one polling source or push sources.",
                "Split it into two datasets.",
            )
    newest = {event.source_name: number for number, event in sources if isinstance(event, AddPushSource)}
    for number in newest.values():
        other, first_source = events[number], events[min(newest.values())]
        if encoding_of(other.merge) is not encoding_of(first_source.merge):
            raise document.wrong(
                (*CONTENT, number, "merge"),
                f"the push sources {first_source.source_name!r} and {other.source_name!r} write different "
                "columns.",
                "Use the same encoding in both.",
            )


def _is_source(event: Any) -> bool:
    return isinstance(event, SetPollingSource | AddPushSource)
