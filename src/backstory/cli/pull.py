"""`backstory pull` and `backstory ingest`: load what is new into Open Data Fabric datasets.

`backstory add`: register Open Data Fabric datasets.
"""

import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from backstory.cli.answers import answer_from_files, answer_from_metadata, open_warehouse
from backstory.cli.options import NO_REMARK, Flag, Options, RemarkFlags
from backstory.cli.output import (
    NOTHING_WRITTEN,
    console,
    errors,
    print_added,
    print_changes,
    print_error,
    print_line,
    print_lints,
    print_receipt,
    print_summary,
    show,
)
from backstory.errors import UsageError
from backstory.model.instant import instant_of
from backstory.model.receipt import exit_code
from backstory.spark.process import raise_interrupts

if TYPE_CHECKING:
    from backstory.doors.odf.door import Added
    from backstory.engine.run_context import Rehearsals

DEFAULTS = Options()
ADDED_SUMMARY = {"added": "Added {0} dataset(s)", "updated": "Updated {0} dataset(s)"}


def add(
    *files: Path,
    recursive: Annotated[bool, Parameter(negative="", alias="-r", show_default=False)] = False,
    namespace: str = "odf",
    dry_run: Flag = False,
    schema: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """Register Open Data Fabric datasets by their manifests.

    This asks no source yet: `backstory pull` does. The new manifest of a known dataset may change its
    source and description, and add optional columns. A wrong manifest does not stop the others.

    Args:
        files: Manifests (YAML), or folders with manifests, at any depth.
        recursive: No effect: folders are always searched.
        namespace: Schema of the datasets' tables.
        dry_run: Print what would be added, and change nothing.
        schema: Print the JSON Schema of manifests, for editors, and change nothing.
        options: Common options.
    """
    from backstory.doors.odf import door
    from backstory.doors.odf.manifest.dataset import json_schema
    from backstory.engine.run_context import collect_rehearsals
    from backstory.model.receipt import exit_code

    _ = recursive
    if schema:
        sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
        return 0
    if not files:
        raise UsageError("no-manifest", "No manifest is given.", "Use `backstory add MANIFEST.yaml`.")
    if len(files) == 1 and not files[0].is_dir():
        door.inspected_file(files[0])  # what is wrong is said at once, without Spark
    with open_warehouse(options) as warehouse, collect_rehearsals() as changes:
        found = door.add_each(warehouse.store, namespace, files, dry_run=dry_run)
    if len(found) == 1 and found[0].error is not None:
        raise found[0].error
    _show_added(found, options, changes, dry_run=dry_run)
    return exit_code(found)


def _show_added(found: "Sequence[Added]", options: Options, changes: "Rehearsals", *, dry_run: bool) -> None:
    if not options.quiet:
        print_lints(found)
    if options.answer != "table":
        show([each.to_dict() for each in found], options.answer, () if found else ("dataset", "status"))
        return
    for each in found:
        print_added(each)
    counts: Counter[str] = Counter(each.status for each in found)
    for status, text in ADDED_SUMMARY.items():
        if counts[status] or status == "added":
            console.print(text.format(counts[status]))
    print_changes(changes)
    if dry_run:
        console.print(NOTHING_WRITTEN)
    for each in found:
        if each.error is not None:
            print_error(each.error.to_dict(), f"{each.file}: ")


if TYPE_CHECKING:
    from backstory.doors.odf.door import Added, DatasetReceipt, RunRequest, Watcher
    from backstory.doors.odf.polling import Poll
    from backstory.engine.run_context import Rehearsals
    from backstory.model.table import TableName
    from backstory.observe.progress import ProgressLine

InputFormat = Literal["csv", "json", "ndjson", "geojson", "ndgeojson", "parquet", "esrishapefile"]
COLUMNS = ("dataset", "status", "counts", "offsets", "watermark", "system_time", "error")


def pull(
    *datasets: str,
    all: Flag = False,  # noqa: A002 - the option's name
    system_time: str | None = None,
    fetch_uncacheable: Flag = False,
    refetch: Flag = False,
    set_watermark: str | None = None,
    run_id: str | None = None,
    namespace: str = "odf",
    dry_run: Flag = False,
    remark: RemarkFlags = NO_REMARK,
    options: Options = DEFAULTS,
) -> int:
    """Ask the sources of Open Data Fabric datasets, and ingest what is new, one commit for each file.

    Without new data there is no commit. A dataset that fails does not stop the others. When you
    interrupt, committed files stay, and the next pull continues from there.

    Args:
        datasets: Names of datasets, or manifests (YAML) to add first.
        all: Pull every dataset of the warehouse.
        system_time: The time of the run, ISO 8601, for repeatable runs. Default: now.
        fetch_uncacheable: Also fetch from sources that cannot say whether they changed.
        refetch: Fetch again, even if the download of an earlier run was kept.
        set_watermark: Raise the watermark to this time, without asking the source.
        run_id: Name of the run; a file that this run has already ingested is skipped.
        namespace: Schema of the datasets' tables.
        dry_run: Print the same counts, and write nothing.
        remark: The note and the author of the commit.
        options: Common options.
    """
    from backstory.doors.odf import door
    from backstory.engine.run_context import collect_rehearsals, with_remark

    for time in (system_time, set_watermark):
        _ = time and instant_of(time)
    for each in datasets:
        if door.is_file(each):
            door.inspected_file(Path(each))  # what is wrong is said at once, without Spark
    line = _progress_line(options)
    asked = door.RunRequest(
        system_time=None if system_time is None else instant_of(system_time),
        fetch_uncacheable=fetch_uncacheable,
        refetch=refetch,
        set_watermark=None if set_watermark is None else instant_of(set_watermark),
        run_id=run_id,
        dry_run=dry_run,
        rights=options.settings().rights,
        progress=line.tell,
    )
    with collect_rehearsals() as changes, with_remark(remark.note, remark.author):
        receipts = _pull_datasets(datasets, namespace, asked, options, line, every=all)
    _show_receipts(receipts, options, changes, dry_run=dry_run)
    return exit_code(receipts)


def _pull_datasets(
    wanted: Sequence[str],
    namespace: str,
    asked: "RunRequest",
    options: Options,
    line: "ProgressLine",
    *,
    every: bool,
) -> "list[DatasetReceipt]":
    """The receipts: without Spark up to the first dataset with something new, or that only Spark reads."""
    from backstory.doors.odf import door
    from backstory.doors.odf.arguments import Argument
    from backstory.doors.odf.ingestion import DatasetReceipt
    from backstory.doors.odf.small_pulls import choose_datasets

    known, left = None, list[Argument](wanted)
    if asked.set_watermark is None:
        known = answer_from_metadata(
            options, lambda catalog: choose_datasets(catalog, namespace, wanted, every=every)
        )
    before: list[DatasetReceipt | Poll] = []
    if known is not None:
        added, names = known
        with _watch_datasets(options, line) as watcher:
            for each in added:
                watcher.added(each)
            before = _ask_sources(names, asked, options, watcher)
        receipts = [each for each in before if isinstance(each, DatasetReceipt)]
        if len(receipts) == len(names):
            return receipts
        left, every = [*names[len(receipts) :]], False
    with open_warehouse(options) as warehouse, _watch_datasets(options, line) as watcher:
        return door.pull_all(
            warehouse.store, left, asked, namespace=namespace, every=every, watcher=watcher, before=before
        )


def _ask_sources(
    names: "Sequence[TableName]", asked: "RunRequest", options: Options, watcher: "Watcher"
) -> "list[DatasetReceipt | Poll]":
    """The receipts of datasets that have nothing new, and what the source of the first other one answered."""
    from backstory.doors.odf import door
    from backstory.doors.odf.ingestion import DatasetReceipt
    from backstory.doors.odf.small_pulls import ask_source

    receipts: list[DatasetReceipt | Poll] = []
    for each in names:
        watcher.begun(each.name)
        answer = answer_from_files(options, each, partial(ask_source, asked=asked))
        if not isinstance(answer, DatasetReceipt):
            return receipts if answer is None else [*receipts, answer]
        receipts.append(door.report_receipt(answer, watcher, alone=len(names) == 1))
    return receipts


def ingest(
    dataset: str,
    /,
    *files: Path,
    stdin: Flag = False,
    source_name: str | None = None,
    event_time: str | None = None,
    input_format: InputFormat | None = None,
    system_time: str | None = None,
    run_id: str | None = None,
    namespace: str = "odf",
    dry_run: Flag = False,
    remark: RemarkFlags = NO_REMARK,
    options: Options = DEFAULTS,
) -> int:
    """Ingest files into an Open Data Fabric dataset, one commit for each.

    The dataset's push source says how to read them. A dataset without any source accepts them as they are.

    Args:
        dataset: Name of the dataset.
        files: Files to ingest, in this order.
        stdin: Ingest standard input, after the files.
        source_name: Name of the push source. Default: the only one, or `default`.
        event_time: Event time of rows that have none, ISO 8601. Default: the system time.
        input_format: Format of the files, instead of the source's.
        system_time: The time of the run, ISO 8601, for repeatable runs. Default: now.
        run_id: Name of the run; a file that this run has already ingested is skipped.
        namespace: Schema of the datasets' tables.
        dry_run: Print the same counts, and write nothing.
        remark: The note and the author of the commit.
        options: Common options.
    """
    from backstory.engine.run_context import collect_rehearsals

    for time in (system_time, event_time):
        _ = time and instant_of(time)
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
            event_time=event_time,
            input_format=input_format,
            system_time=system_time,
            run_id=run_id,
            namespace=namespace,
            dry_run=dry_run,
            watcher=watcher,
            **remark.arguments(),
        )
        watcher.ended(receipt)
    _show_receipts([receipt], options, changes, dry_run=dry_run)
    return receipt.exit_code


def _progress_line(options: Options) -> "ProgressLine":
    """The line that tells how far a dataset is, on a terminal."""
    from backstory.observe.progress import ProgressLine

    drawn = errors.is_terminal and not options.quiet and not options.verbose
    return ProgressLine(errors if drawn else None)


@contextmanager
def _watch_datasets(options: Options, line: "ProgressLine") -> Iterator["Watcher"]:
    """A watcher that prints: a progress line meanwhile, and a line that stays for each dataset."""
    from backstory.doors.odf.door import Watcher

    def added(one: "Added") -> None:
        if not options.quiet:
            print_lints([one])
        if options.answer == "table" and one.status != "unchanged":
            print_added(one)

    def ended(receipt: "DatasetReceipt") -> None:
        line.end()
        if options.answer == "table":
            print_receipt(receipt)

    try:
        with raise_interrupts():
            yield Watcher(added, line.begin, line.tell, ended)
    except KeyboardInterrupt:
        line.end()
        print_line("Interrupted. Committed files stay; the next pull continues from there.")
        raise
    finally:
        line.end()


@contextmanager
def _files_to_ingest(files: Sequence[Path], *, stdin: bool) -> Iterator[list[Path]]:
    """The files to ingest; standard input becomes one of them."""
    with tempfile.TemporaryDirectory(prefix="backstory-stdin-") as folder:
        paths = list(files)
        if stdin:
            paths.append(Path(folder, "stdin"))
            with paths[-1].open("wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy)
        yield paths


def _show_receipts(
    receipts: "Sequence[DatasetReceipt]", options: Options, changes: "Rehearsals", *, dry_run: bool
) -> None:
    if options.answer == "table":
        if dry_run:  # a pull in earnest looks at its manifest as a dry run of `add` does
            print_changes(changes)
        print_summary(receipts, dry_run=dry_run)
        return
    told = [receipt.to_dict() for receipt in receipts]
    if options.answer == "json":
        show(told, "json")
        return
    show([_receipt_row(each) for each in told], "csv", COLUMNS)
    for each in told:
        if each["error"]:
            print_error(each["error"], f"{each['dataset']}: ")


def _receipt_row(receipt: dict[str, Any]) -> dict[str, Any]:
    """A receipt as a row."""
    offsets, error = receipt["offsets"], receipt["error"]
    return {
        **receipt,
        "offsets": "{}-{}".format(*offsets) if offsets else None,
        "error": error["code"] if error else None,
    }
