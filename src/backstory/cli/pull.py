"""Deliveries to Open Data Fabric datasets: `add`, `pull`, `ingest`."""

import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from cyclopts import Parameter

from backstory.cli.answers import answer_from_files, answer_from_metadata, open_warehouse
from backstory.cli.options import DEFAULTS, Flag, Namespace, Options, with_flags
from backstory.cli.output import (
    NOTHING_WRITTEN,
    console,
    errors,
    print_changes,
    print_error,
    print_line,
    short_time,
)
from backstory.doors.odf.options import InputFormat, PullOptions, RunOptions
from backstory.engine.run_context import Remark, collect_rehearsals, with_remark
from backstory.errors import UsageError
from backstory.model.instant import optional_instant
from backstory.model.receipt import exit_code
from backstory.spark.process import raise_interrupts

if TYPE_CHECKING:
    from backstory.cli.progress import ProgressLine
    from backstory.doors.odf.polling import IngestRequest, Poll
    from backstory.doors.odf.receipts import Added, DatasetReceipt, Watcher
    from backstory.engine.run_context import Rehearsals
    from backstory.model.table import TableName

COLUMNS = ("dataset", "status", "counts", "offsets", "watermark", "system_time", "error")
ADDED = {
    "added": "Added: {0}",
    "updated": "Updated: {0}",
    "unchanged": "Skipped: {0}: Already exists",
    "failed": "Failed: {0}",
}
ADDED_SUMMARY = {"added": "Added {0} dataset(s)", "updated": "Updated {0} dataset(s)"}
SUMMARY = {
    "updated": "{0} dataset(s) updated",
    "up-to-date": "{0} dataset(s) up-to-date",
    "uncacheable": "{0} dataset(s) uncacheable",
    "disabled": "{0} dataset(s) without a source to ask",
    "failed": "Failed to update {0} dataset(s)",
}
OUTCOMES_OF_OPS = (("+A", "appended"), ("-C/+C", "corrected"), ("-R", "retracted"))
OTHER_OUTCOMES = ("unchanged", "conflicts", "late")


def add(
    *files: Path,
    recursive: Annotated[bool, Parameter(negative="", alias="-r", show_default=False)] = False,
    namespace: Namespace = "odf",
    dry_run: Flag = False,
    schema: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """Register Open Data Fabric datasets by their manifests.

    No source is polled until `backstory pull` runs. The new manifest of a known dataset may change its source
    and description, and add optional columns. A wrong manifest does not stop the others.

    Args:
        files: Manifests (YAML), or folders with manifests, at any depth.
        recursive: No effect: folders are always searched.
        dry_run: Print the changes, and write nothing.
        schema: Print the JSON Schema of manifests, for editors, and change nothing.
    """
    _ = recursive
    if schema:
        from backstory.doors.odf.manifest.dataset import json_schema

        sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
        return 0
    if not files:
        raise UsageError("no-manifest", "No manifest is given.", "Use `backstory add MANIFEST.yaml`.")
    from backstory.doors.odf import adding, inspecting

    if len(files) == 1 and not files[0].is_dir():
        inspecting.inspect_file(files[0])  # raises its errors before Spark starts
    with open_warehouse(options) as warehouse, collect_rehearsals() as changes:
        manifests = adding.add_each(warehouse.store, namespace, files, dry_run=dry_run)
    if len(manifests) == 1 and manifests[0].error is not None:
        raise manifests[0].error
    _show_added(manifests, options, changes, dry_run=dry_run)
    return exit_code(manifests)


def _show_added(
    manifests: "Sequence[Added]", options: Options, changes: "Rehearsals", *, dry_run: bool
) -> None:
    if not options.quiet:
        print_lints(manifests)
    if not options.for_people:
        columns = () if manifests else ("dataset", "status")
        options.show([manifest.to_dict() for manifest in manifests], columns)
        return
    for manifest in manifests:
        print_added(manifest)
    counts: Counter[str] = Counter(manifest.status for manifest in manifests)
    for status, text in ADDED_SUMMARY.items():
        if counts[status] or status == "added":
            console.print(text.format(counts[status]))
    print_changes(changes)
    if dry_run:
        console.print(NOTHING_WRITTEN)
    for manifest in manifests:
        if manifest.error is not None:
            print_error(manifest.error.to_dict(), f"{manifest.file}: ")


@with_flags(PullOptions, RunOptions, Remark)
def pull(
    *datasets: str,
    all: Flag = False,  # noqa: A002 - the option's name
    options: Options = DEFAULTS,
    namespace: Namespace = "odf",
    **words: Unpack[PullOptions],
) -> int:
    """Poll the sources of Open Data Fabric datasets, and ingest new data, with one commit for each file.

    Without new data, there is no commit. A dataset that fails does not stop the others. If you interrupt a
    pull, committed files are kept, and the next pull continues after them.

    Args:
        datasets: Names of datasets, or manifests (YAML) to add first.
        all: Pull every dataset of the warehouse.
    """
    from backstory.doors.odf import inspecting, polling, registry

    line = _progress_line(options)
    request = polling.IngestRequest(**words, rights=options.settings().rights, progress=line.tell)
    for name_or_file in datasets:
        if registry.is_file(name_or_file):
            inspecting.inspect_file(Path(name_or_file))  # raises its errors before Spark starts
    with collect_rehearsals() as changes, with_remark(request.note, request.author):
        receipts = _pull_datasets(datasets, namespace, request, options, line, every=all)
    _show_receipts(receipts, options, changes, dry_run=request.dry_run)
    return exit_code(receipts)


def _pull_datasets(
    names_or_files: Sequence[str],
    namespace: str,
    request: "IngestRequest",
    options: Options,
    line: "ProgressLine",
    *,
    every: bool,
) -> "list[DatasetReceipt]":
    """Pull without Spark until a dataset has new data or needs Spark. Spark pulls the remaining datasets."""
    from backstory.doors.odf import polling, receipts, registry

    chosen, left = None, list[registry.Argument](names_or_files)
    if request.set_watermark is None:
        chosen = answer_from_metadata(
            options, lambda catalog: polling.choose_datasets(catalog, namespace, names_or_files, every=every)
        )
    before: list[DatasetReceipt | Poll] = []
    if chosen is not None:
        manifests, names = chosen
        with _watch_datasets(options, line) as watcher:
            for manifest in manifests:
                watcher.added(manifest)
            before = _ask_sources(names, request, options, watcher)
        unchanged = [result for result in before if isinstance(result, receipts.DatasetReceipt)]
        if len(unchanged) == len(names):
            return unchanged
        left, every = [*names[len(unchanged) :]], False
    from backstory.doors.odf import door

    with open_warehouse(options) as warehouse, _watch_datasets(options, line) as watcher:
        return door.pull_all(
            warehouse.store, left, request, namespace=namespace, every=every, watcher=watcher, before=before
        )


def _ask_sources(
    names: "Sequence[TableName]", request: "IngestRequest", options: Options, watcher: "Watcher"
) -> "list[DatasetReceipt | Poll]":
    """The receipts of datasets without new data, and the poll of the first dataset with new data, if any."""
    from backstory.doors.odf import polling, receipts

    results: list[DatasetReceipt | Poll] = []
    for name in names:
        watcher.begun(name.name)
        result = answer_from_files(options, name, partial(polling.ask_source, request=request))
        if not isinstance(result, receipts.DatasetReceipt):
            return results if result is None else [*results, result]
        results.append(receipts.report_receipt(result, watcher, alone=len(names) == 1))
    return results


@with_flags(RunOptions, Remark)
def ingest(
    dataset: str,
    /,
    *files: Path,
    stdin: Flag = False,
    source_name: str | None = None,
    event_time: str | None = None,
    input_format: InputFormat | None = None,
    options: Options = DEFAULTS,
    namespace: Namespace = "odf",
    **words: Unpack[RunOptions],
) -> int:
    """Ingest files into an Open Data Fabric dataset, with one commit for each file.

    The push source of the dataset defines how the files are read. A dataset without a source accepts them
    unchanged.

    Args:
        dataset: Name of the dataset.
        files: Files to ingest, in this order.
        stdin: Ingest standard input, after the files.
        source_name: Name of the push source. Default: the only one, or `default`.
        event_time: Event time of rows without one, ISO 8601. Default: the system time.
        input_format: Format of the files, instead of the source's.
    """
    time = optional_instant(event_time)
    words["system_time"] = optional_instant(words["system_time"])
    if not files and not stdin:
        raise UsageError("no-file", "No file is given.", "Name at least one, or use `--stdin`.")
    with (
        open_warehouse(options) as warehouse,
        _watch_datasets(options, _progress_line(options)) as watcher,
        _files_to_ingest(files, stdin=stdin) as paths,
        collect_rehearsals() as changes,
    ):
        watcher.begun(dataset)
        receipt = warehouse.ingest(
            dataset,
            *paths,
            source_name=source_name,
            event_time=time,
            input_format=input_format,
            namespace=namespace,
            watcher=watcher,
            **words,
        )
        watcher.ended(receipt)
    _show_receipts([receipt], options, changes, dry_run=words["dry_run"])
    return receipt.exit_code


def _progress_line(options: Options) -> "ProgressLine":
    """The progress line of a dataset, which is only drawn on a terminal."""
    from backstory.cli.progress import ProgressLine

    drawn = errors.is_terminal and not options.quiet and not options.verbose
    return ProgressLine(errors if drawn else None)


@contextmanager
def _watch_datasets(options: Options, line: "ProgressLine") -> Iterator["Watcher"]:
    """A watcher that draws a progress line, and prints a line for each manifest and dataset."""
    from backstory.doors.odf.receipts import Watcher

    def on_manifest(manifest: "Added") -> None:
        if not options.quiet:
            print_lints([manifest])
        if options.for_people and manifest.status != "unchanged":
            print_added(manifest)

    def on_end(receipt: "DatasetReceipt") -> None:
        line.end()
        if options.for_people:
            console.print(receipt_line(receipt), markup=False)
            if receipt.error is not None:
                print_error(receipt.error.to_dict(), f"{receipt.dataset}: ")

    try:
        with raise_interrupts():
            yield Watcher(on_manifest, line.begin, line.tell, on_end)
    except KeyboardInterrupt:
        line.end()
        print_line("Interrupted. Committed files stay; the next pull continues from there.")
        raise
    finally:
        line.end()


@contextmanager
def _files_to_ingest(files: Sequence[Path], *, stdin: bool) -> Iterator[list[Path]]:
    """The files, and a temporary copy of standard input."""
    with tempfile.TemporaryDirectory(prefix="backstory-stdin-") as folder:
        paths = list(files)
        if stdin:
            paths.append(Path(folder, "stdin"))
            with paths[-1].open("wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy)
        yield paths


def print_added(manifest: "Added") -> None:
    """Print the outcome of a manifest."""
    console.print(ADDED[manifest.status].format(manifest.dataset or manifest.file), markup=False)


def print_lints(manifests: Iterable["Added"]) -> None:
    """Print the lints of manifests on standard error."""
    for manifest in manifests:
        for lint in manifest.lints:
            print_line(f"{lint.level} {lint.code}: {lint.place}: {lint.message}. {lint.remedy}".rstrip())


def receipt_line(receipt: "DatasetReceipt") -> str:
    """A line such as `cities: updated  +A 3  -C/+C 1  (2 unchanged)  offsets 4 to 8  watermark ...`."""
    counts = receipt.counts
    others = ", ".join(f"{counts[name]} {name}" for name in OTHER_OUTCOMES if counts[name])
    parts = [
        f"{receipt.dataset}: {receipt.status}",
        *(f"{symbol} {counts[name]}" for symbol, name in OUTCOMES_OF_OPS if counts[name]),
        f"({others})" if others else "",
        f"({receipt.hint})" if receipt.hint else "",
        "offsets {} to {}".format(*receipt.offsets) if receipt.offsets else "",
        _watermark_text(receipt) if receipt.status == "updated" else "",
    ]
    return "  ".join(filter(None, parts))


def _watermark_text(receipt: "DatasetReceipt") -> str:
    before, after = receipt.before, receipt.watermark
    if after is None:
        return ""
    change = short_time(after) if before == after else f"{short_time(before)} -> {short_time(after)}"
    return f"watermark {change}"


def _show_receipts(
    receipts: "Sequence[DatasetReceipt]", options: Options, changes: "Rehearsals", *, dry_run: bool
) -> None:
    if options.for_people:
        if dry_run:  # a pull that writes also rehearses `add` for its manifests
            print_changes(changes)
        counts: Counter[str] = Counter(receipt.status for receipt in receipts)
        for status, text in SUMMARY.items():
            if counts[status]:
                console.print(text.format(counts[status]))
        if not receipts:
            console.print("There are no datasets. Add one with `backstory add MANIFEST`.")
        if dry_run:
            console.print(NOTHING_WRITTEN)
        return
    documents = [receipt.to_dict() for receipt in receipts]
    if options.output_format == "json":
        options.show(documents)
        return
    options.show([_receipt_row(document) for document in documents], COLUMNS)
    for document in documents:
        if document["error"]:
            print_error(document["error"], f"{document['dataset']}: ")


def _receipt_row(receipt: dict[str, Any]) -> dict[str, Any]:
    offsets, error = receipt["offsets"], receipt["error"]
    return {
        **receipt,
        "offsets": "{}-{}".format(*offsets) if offsets else None,
        "error": error["code"] if error else None,
    }
