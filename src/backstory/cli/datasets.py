"""The commands for stored Open Data Fabric datasets: `list`, `inspect`, `tail`, `verify`."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from backstory.cli.answers import (
    answer_from_dataset,
    answer_from_files,
    answer_from_metadata,
    open_warehouse,
    rows_of_frame,
)
from backstory.cli.options import DEFAULTS, NOT_NEGATIVE, Flag, Namespace, Options
from backstory.cli.output import add_error_column, console, print_error, print_line, show, with_short_times
from backstory.errors import BackstoryError, UsageError, Violated
from backstory.model.receipt import attempt_each, exit_code

if TYPE_CHECKING:
    import pyarrow as pa

    from backstory.doors.odf.inspecting import Inspected
    from backstory.doors.odf.registry import KnownDataset
    from backstory.journal.verify import Verdict
    from backstory.model.table import TableName
    from backstory.stores.metadata.table_rows import TableReader
    from backstory.stores.port import TableLike

LIST_COLUMNS = ("dataset", "source", "merge", "pulled", "records", "blocks", "watermark")
VERDICT = ("dataset", "valid", "blocks", "rows", "problems")
LINTS = ("dataset", "code", "level", "place", "message", "remedy")


def list_(*, namespace: Namespace = "odf", options: Options = DEFAULTS) -> None:
    """List the datasets: source, merge strategy, last pull, records, blocks, watermark."""
    from backstory.doors.odf import inspecting, registry

    datasets = answer_from_metadata(
        options, lambda catalog: registry.described_datasets(catalog, namespace).all_or_errors()
    )
    entries = [
        inspecting.unreadable_entry(name)
        if isinstance(dataset, BackstoryError)
        else answer_from_files(options, name, inspecting.list_entry_here)
        for name, dataset in (datasets or {}).items()
    ]
    rows = [entry for entry in entries if entry is not None]
    if datasets is None or len(rows) < len(entries):
        with open_warehouse(options, brief=True) as warehouse:
            rows = warehouse.datasets(namespace=namespace)
    if options.for_people:
        rows = [
            {**with_short_times(row, "pulled", "watermark"), "merge": ", ".join(row["merge"]) or None}
            for row in rows
        ]
    options.show(rows, LIST_COLUMNS)


def inspect(
    dataset: str,
    /,
    *,
    resolved: Flag = False,
    schema: Flag = False,
    lints: Flag = False,
    namespace: Namespace = "odf",
    options: Options = DEFAULTS,
) -> None:
    """Show the manifest, schema, lints, newest block and source state of a dataset.

    Args:
        dataset: Name of a dataset, or a manifest (YAML), which needs no warehouse.
        resolved: Show only the manifest, with every default filled in.
        schema: Show only the columns.
        lints: Show only warnings about the manifest.
    """
    from backstory.doors.odf import inspecting
    from backstory.doors.odf.manifest.dataset import resolve_defaults

    inspected = _inspect(dataset, namespace, options, linted=lints or not (schema or resolved))
    if schema:
        columns = [
            {"dataset": document.dataset.name, "column": field["name"], "type": type_text(field["type"])}
            for document in inspected
            for field in (document.schema["fields"] if document.schema else ())
        ]
        show(columns, options.output_format, ("dataset", "column", "type"))
        return
    if lints:
        rows = [{"dataset": one.dataset.name, **lint.to_dict()} for one in inspected for lint in one.lints]
        if rows or not options.for_people:
            show(rows, options.output_format, LINTS)
        else:
            console.print("No warnings.")
        return
    documents = [resolve_defaults(one.dataset) if resolved else one.to_dict() for one in inspected]
    if options.output_format == "json":
        options.show(documents)
    else:
        sys.stdout.write("---\n".join(map(inspecting.as_yaml, documents)))


def _inspect(dataset: str, namespace: str, options: Options, *, linted: bool) -> "Sequence[Inspected]":
    """The documents of the datasets in a manifest, or the document of a stored dataset."""
    from backstory.doors.odf import inspecting, registry

    if registry.is_file(dataset):
        return inspecting.inspect_file(Path(dataset))
    inspect_here = partial(inspecting.inspect_here, linted=linted)
    small = answer_from_dataset(options, namespace, dataset, inspect_here)
    if small is not None:
        return [small]
    with open_warehouse(options) as warehouse:
        return [warehouse.inspect(dataset, namespace=namespace)]


def tail(
    dataset: str,
    /,
    *,
    limit: Annotated[int, Parameter(alias="-n", validator=NOT_NEGATIVE)] = 10,
    skip: Annotated[int, Parameter(alias="-s", validator=NOT_NEGATIVE)] = 0,
    namespace: Namespace = "odf",
    options: Options = DEFAULTS,
) -> None:
    """Show the newest rows of a dataset, with the newest row last.

    Args:
        dataset: Name of the dataset.
        limit: Largest number of rows to show.
        skip: Number of newest rows to leave out.
    """
    from backstory.doors.odf import inspecting, registry
    from backstory.stores.metadata.values import rows_of

    def of_files(files: "TableReader") -> "tuple[pa.Table, KnownDataset[TableLike]]":
        return inspecting.newest_rows_here(files, limit, skip), inspecting.dataset_here(files)

    small = answer_from_dataset(options, namespace, dataset, of_files)
    if small is not None:
        newest, known = small
        names, rows = newest.column_names, rows_of(newest)
    else:
        from backstory.doors.odf.door import newest_rows

        with open_warehouse(options) as warehouse:
            known = registry.stored_datasets(warehouse.store, namespace).existing(dataset)
            frame = newest_rows(warehouse.store, known, limit, skip)
            names, rows = frame.columns, rows_of_frame(frame, None, options, dataset)
    if options.for_people:
        for name, words in inspecting.symbols(known).items():
            rows = [{**row, name: words.get(row[name], row[name])} for row in rows]
    options.show(rows, names)


def verify(
    *datasets: str,
    all: Flag = False,  # noqa: A002 - the option's name
    namespace: Namespace = "odf",
    options: Options = DEFAULTS,
) -> int:
    """Check datasets against the records of their commits: chain, log, offsets, rows and columns.

    Compaction and expired snapshots make no difference. The exit code is 4 if anything else differs.

    Args:
        datasets: Names of datasets.
        all: Check every dataset of the warehouse.
    """
    if not datasets and not all:
        raise UsageError("no-dataset", "No dataset is named.", "Name datasets, or use `--all`.")
    verdicts = _verify_datasets(datasets, namespace, options, every=all)
    if options.for_people:
        _print_verdicts(verdicts)
    else:
        rows = [_verdict_fields(verdict) for verdict in verdicts]
        options.show(rows, add_error_column(VERDICT, rows))
    failed = exit_code(verdict.error for verdict in verdicts if verdict.error is not None)
    return failed or (Violated.exit_code if any(verdict.problems for verdict in verdicts) else 0)


def _verify_datasets(
    datasets: Sequence[str], namespace: str, options: Options, *, every: bool
) -> "list[Verdict]":
    """The verdicts on datasets. Small datasets are verified from their files, and all others by Spark."""
    from backstory.doors.odf import registry
    from backstory.journal.verify import Verdict, verdict_of, verify, verify_small

    of_files = partial(verify_small, renamings=registry.renamings)
    verify_each = partial(attempt_each, every=every, alone=len(datasets) == 1 and not every)
    names = answer_from_metadata(
        options,
        lambda catalog: registry.described_datasets(catalog, namespace).select_names(datasets, every=every),
    )
    results: dict[TableName, Verdict | BackstoryError | None]
    results = verify_each(names or (), lambda name: answer_from_files(options, name, of_files))
    left = [name for name, result in results.items() if result is None]
    if names is None or left:
        with open_warehouse(options) as warehouse:
            store = warehouse.store
            if names is None:
                left = registry.stored_datasets(store, namespace).select_names(datasets, every=every)
            results |= verify_each(left, lambda name: verify(store, name, registry.renamings))
    return [verdict_of(name, result) for name, result in results.items() if result is not None]


def _print_verdicts(verdicts: "Sequence[Verdict]") -> None:
    for verdict in verdicts:
        for problem in verdict.problems:
            offsets = " (offsets {} to {})".format(*problem.offsets) if problem.offsets else ""
            print_line(f"{verdict.dataset.name}: {problem.what}: {problem.message}{offsets}")
    for verdict in verdicts:
        if verdict.error is not None:
            print_error(verdict.error.to_dict(), f"{verdict.dataset.name}: ")
    bad = sum(bool(verdict.problems) for verdict in verdicts)
    unread = sum(verdict.error is not None for verdict in verdicts)
    console.print(f"{len(verdicts) - bad - unread} dataset(s) are valid")
    if bad:
        console.print(f"{bad} dataset(s) differ from their commits")
    if unread:
        console.print(f"{unread} dataset(s) cannot be read")


def _verdict_fields(verdict: "Verdict") -> dict[str, Any]:
    """A verdict as a JSON object, with NULL for fields that are unknown after an error."""
    if verdict.error is not None:
        unknown = dict.fromkeys(VERDICT)
        return {**unknown, "dataset": verdict.dataset.name, "problems": [], "error": verdict.error.to_dict()}
    return {
        "dataset": verdict.dataset.name,
        "valid": verdict.valid,
        "blocks": verdict.blocks,
        "rows": verdict.rows,
        "problems": [asdict(problem) for problem in verdict.problems],
    }


def type_text(type_: Any) -> str:
    """A type in a manifest as a string: `Int64`, `Decimal(12, 2)`, `String, optional`."""
    if not isinstance(type_, dict):
        return str(type_)
    kind = type_["kind"]
    if kind == "Option":
        return f"{type_text(type_['inner'])}, optional"
    more = [str(value) for name, value in type_.items() if name != "kind" and isinstance(value, str | int)]
    return f"{kind}({', '.join(more)})" if more else kind
