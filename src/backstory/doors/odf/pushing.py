"""Push: ingest files from a sender, each in a commit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from backstory.doors.odf import registry
from backstory.doors.odf.committing import head_of, write_log
from backstory.doors.odf.delivery import deliver_file
from backstory.doors.odf.manifest.events import AddPushSource, Read
from backstory.doors.odf.manifest.merge import Append
from backstory.doors.odf.polling import IngestRequest, log_notes, unchanged_receipt
from backstory.doors.odf.preprocess import refuse_forbidden_queries
from backstory.doors.odf.pulling import failure_of
from backstory.doors.odf.receipts import DatasetReceipt, sum_up
from backstory.doors.odf.registry import RegisteredDataset
from backstory.errors import BackstoryError, Failed, UsageError
from backstory.sources.source import FetchedFile
from backstory.stores.iceberg.store import IcebergStore

FORMATS = {
    "csv": "Csv",
    "json": "Json",
    "ndjson": "NdJson",
    "geojson": "GeoJson",
    "ndgeojson": "NdGeoJson",
    "parquet": "Parquet",
    "esrishapefile": "EsriShapefile",
}
ENDINGS = {"jsonl": "ndjson", "zip": "esrishapefile", **{name: name for name in FORMATS}}


@dataclass(frozen=True, slots=True)
class PushedFiles:
    """Files to ingest in this order, and the options that their names do not contain."""

    files: Sequence[Path]
    source_name: str | None = None
    event_time: datetime | None = None
    input_format: str | None = None


def push(
    store: IcebergStore, dataset: RegisteredDataset, pushed: PushedFiles, request: IngestRequest
) -> DatasetReceipt:
    """Ingest files into a dataset.

    The first error ends the push and is in the receipt. Commits of earlier files are kept. Raises UsageError
    for an unknown source.
    """
    run = request.run()
    receipts: list[DatasetReceipt] = []
    head = head_of(store, dataset)
    unchanged = unchanged_receipt(dataset, head)
    source = source_of(dataset, pushed)
    if source is None:
        return replace(unchanged, status="disabled", hint="the push source is disabled")
    for path in pushed.files:
        try:
            refuse_forbidden_queries(store, dataset.name, dataset.dataset)
            if not path.is_file():
                raise Failed("not-found", f"There is no file {path}.", "Check its name.")
            fetched = FetchedFile(path, path.name, pushed.event_time, None)
            read = _read_as(source, pushed.input_format)
            load_dataset = partial(registry.reload, store, dataset.name)
            receipt, _ = deliver_file(store, dataset.name, load_dataset, read, fetched, run)
        except BackstoryError as error:
            return replace(sum_up(receipts, failure_of(store, dataset, error)), status="failed", error=error)
        receipts.append(log_notes(receipt))
    if not run.dry_run and all(receipt.status == "up-to-date" for receipt in receipts):
        write_log(store, dataset.name)  # an earlier run may have ended before it wrote its log
    return replace(sum_up(receipts, unchanged), before=head.watermark)


def source_of(dataset: RegisteredDataset, pushed: PushedFiles) -> AddPushSource | None:
    """The push source for the files, or None if it is disabled.

    A dataset without sources appends all rows, with a source named `auto` (section 3.6, B69).
    """
    known, name = dataset.dataset, pushed.source_name
    if name is None and len(known.push) == 1:
        name = next(iter(known.push))
    wanted = name or "default"
    if wanted in known.disabled_push:
        return None
    if wanted in known.push:
        return known.push[wanted]
    if known.push or known.polling is not None:
        raise UsageError(
            "no-source",
            f"The dataset {known.name} has no push source {wanted}.",
            f"It has {', '.join(known.push) or 'a polling source only: use `backstory pull`'}.",
        )
    format_ = pushed.input_format or _ending(pushed.files[0])
    read = TypeAdapter(Read).validate_python(_reading(format_))
    return AddPushSource(sourceName="auto", read=read, merge=Append())  # type: ignore[call-arg]


def _reading(format_: str) -> dict[str, object]:
    if format_ not in FORMATS:
        raise UsageError(
            "unknown-format", f"There is no format {format_}.", f"Known are {', '.join(FORMATS)}."
        )
    header = {"header": True, "inferSchema": True} if format_ == "csv" else {}
    return {"kind": FORMATS[format_], **header}


def _ending(path: Path) -> str:
    ending = path.suffix.lower().removeprefix(".")
    if ending not in ENDINGS:
        raise UsageError(
            "unknown-format",
            f"The name {path.name} does not show the format.",
            f"Use `input_format=FORMAT`; formats are {', '.join(FORMATS)}.",
        )
    return ENDINGS[ending]


def _read_as(source: AddPushSource, format_: str | None) -> AddPushSource:
    """The source with its schema, but with another format than the manifest's."""
    if format_ is None or FORMATS.get(format_) == source.read.kind:
        return source
    schema = source.read.model_dump(by_alias=True, include={"schema_", "ddl_schema"}, exclude_unset=True)
    read = TypeAdapter(Read).validate_python({**_reading(format_), **schema})
    return source.model_copy(update={"read": read})
