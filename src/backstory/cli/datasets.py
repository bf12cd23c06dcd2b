"""Look at Open Data Fabric datasets: `list`, `inspect`, `tail`, `verify`."""

import sys
from collections.abc import Sequence
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
from backstory.cli.options import NOT_NEGATIVE, Flag, Options
from backstory.cli.output import add_error_column, console, print_error, print_line, short_time, show
from backstory.errors import BackstoryError, UsageError, Violated
from backstory.model.receipt import attempt_each, exit_code

if TYPE_CHECKING:
    import pyarrow as pa

    from backstory.doors.odf.door import Inspected, Verdict
    from backstory.doors.odf.registry import KnownDataset
    from backstory.model.table import TableName
    from backstory.stores.metadata.table_rows import TableReader
    from backstory.stores.port import TableLike

DEFAULTS = Options()
LIST_COLUMNS = ("dataset", "source", "merge", "pulled", "records", "blocks", "watermark")
VERDICT = ("dataset", "valid", "blocks", "rows", "problems")
LINTS = ("dataset", "code", "level", "place", "message", "remedy")


def list_(*, namespace: str = "odf", options: Options = DEFAULTS) -> None:
    """List the datasets: source, merge strategy, last pull, records, blocks, watermark.

    Args:
        namespace: Schema of the datasets' tables.
        options: Common options.
    """
    rows = _list_without_spark(namespace, options)
    if rows is None:
        with open_warehouse(options, brief=True) as warehouse:
            rows = warehouse.datasets(namespace=namespace)
    if options.answer == "table":
        rows = [_list_row(row) for row in rows]
    show(rows, options.answer, LIST_COLUMNS, wide=options.wide)


def _list_without_spark(namespace: str, options: Options) -> list[dict[str, Any]] | None:
    """The rows of the list where nothing of it needs Spark."""
    from backstory.doors.odf import registry
    from backstory.doors.odf.inspecting import list_entry_here, unreadable_entry

    found = answer_from_metadata(
        options, lambda catalog: registry.described_datasets(catalog, namespace).all_or_errors()
    )
    rows = [
        unreadable_entry(name)
        if isinstance(each, BackstoryError)
        else answer_from_files(options, name, list_entry_here)
        for name, each in (found or {}).items()
    ]
    return None if found is None or None in rows else [row for row in rows if row is not None]


def _list_row(row: dict[str, Any]) -> dict[str, Any]:
    """A dataset as people read it in a row."""
    times = {name: row[name] and short_time(row[name]) for name in ("pulled", "watermark")}
    return {**row, **times, "merge": ", ".join(row["merge"]) or None}


def inspect(
    dataset: str,
    /,
    *,
    resolved: Flag = False,
    schema: Flag = False,
    lints: Flag = False,
    namespace: str = "odf",
    options: Options = DEFAULTS,
) -> None:
    """Show a dataset's manifest, schema, lints, newest block and source state.

    Args:
        dataset: Name of a dataset, or a manifest (YAML), which needs no warehouse.
        resolved: Show only the manifest, with every default filled in.
        schema: Show only the columns.
        lints: Show only warnings about the manifest.
        namespace: Schema of the datasets' tables.
        options: Common options.
    """
    from backstory.doors.odf.arguments import is_file
    from backstory.doors.odf.inspecting import inspected_file

    if is_file(dataset):
        found = inspected_file(Path(dataset))
    else:
        found = [_inspect_dataset(dataset, namespace, options, linted=not (schema or resolved) or lints)]
    if schema:
        columns = [row for each in found for row in _column_rows(each)]
        show(columns, options.answer, ("dataset", "column", "type"))
    elif lints:
        rows = [{"dataset": each.dataset.name, **lint.to_dict()} for each in found for lint in each.lints]
        if rows or options.answer != "table":
            show(rows, options.answer, LINTS)
        else:
            console.print("No warnings.")
    else:
        _show_documents([each.resolved_manifest if resolved else each.to_dict() for each in found], options)


def _inspect_dataset(dataset: str, namespace: str, options: Options, *, linted: bool) -> "Inspected":
    from backstory.doors.odf.inspecting import inspect_here

    small = answer_from_dataset(options, namespace, dataset, partial(inspect_here, linted=linted))
    if small is not None:
        return small
    with open_warehouse(options) as warehouse:
        return warehouse.inspect(dataset, namespace=namespace)


def tail(
    dataset: str,
    /,
    *,
    limit: Annotated[int, Parameter(alias="-n", validator=NOT_NEGATIVE)] = 10,
    skip: Annotated[int, Parameter(alias="-s", validator=NOT_NEGATIVE)] = 0,
    namespace: str = "odf",
    options: Options = DEFAULTS,
) -> None:
    """Show the newest rows of a dataset, the newest last.

    Args:
        dataset: Name of the dataset.
        limit: Largest number of rows to show.
        skip: Number of newest rows to leave out.
        namespace: Schema of the datasets' tables.
        options: Common options.
    """
    from backstory.doors.odf.inspecting import dataset_here, newest_rows, newest_rows_here, symbols
    from backstory.doors.odf.registry import stored_datasets
    from backstory.stores.metadata.values import rows_of

    def of_files(files: "TableReader") -> "tuple[pa.Table, KnownDataset[TableLike]]":
        return newest_rows_here(files, limit, skip), dataset_here(files)

    small = answer_from_dataset(options, namespace, dataset, of_files)
    if small is not None:
        newest, found = small
        names, rows = newest.column_names, rows_of(newest)
    else:
        with open_warehouse(options) as warehouse:
            found = stored_datasets(warehouse.store, namespace).existing(dataset)
            frame = newest_rows(warehouse.store, found, limit, skip)
            names, rows = frame.columns, rows_of_frame(frame, None, options, dataset)
    if options.answer == "table":
        for name, words in symbols(found).items():
            rows = [{**row, name: words.get(row[name], row[name])} for row in rows]
    show(rows, options.answer, names, wide=options.wide)


def verify(
    *datasets: str,
    all: Flag = False,  # noqa: A002 - the option's name
    namespace: str = "odf",
    options: Options = DEFAULTS,
) -> int:
    """Check datasets against what their commits recorded: chain, log, offsets, rows and columns.

    Compaction and expired snapshots make no difference. Exit code 4 if anything else differs.

    Args:
        datasets: Names of datasets.
        all: Check every dataset of the warehouse.
        namespace: Schema of the datasets' tables.
        options: Common options.
    """
    if not datasets and not all:
        raise UsageError("no-dataset", "No dataset is named.", "Name datasets, or use `--all`.")
    found = _verify_datasets(datasets, namespace, options, every=all)
    if options.answer == "table":
        _print_verdicts(found)
    else:
        rows = [_verdict_fields(each) for each in found]
        show(rows, options.answer, add_error_column(VERDICT, rows), wide=options.wide)
    failed = exit_code(each.error for each in found if each.error is not None)
    return failed or (0 if all_valid(found) else Violated.exit_code)


def _verify_datasets(
    datasets: Sequence[str], namespace: str, options: Options, *, every: bool
) -> "list[Verdict]":
    """The verdicts on datasets: on small ones out of their files, on the others by Spark."""
    from backstory.doors.odf import registry
    from backstory.journal.verify import Verdict, verdict_of, verify, verify_small

    of_files = partial(verify_small, renamings=registry.renamings)
    asked = partial(attempt_each, every=every, alone=len(datasets) == 1 and not every)
    names = answer_from_metadata(
        options,
        lambda catalog: registry.described_datasets(catalog, namespace).select_names(datasets, every=every),
    )
    found: dict[TableName, Verdict | BackstoryError | None]
    found = asked(names or (), lambda each: answer_from_files(options, each, of_files))
    left = [each for each, verdict in found.items() if verdict is None]
    if names is None or left:
        with open_warehouse(options) as warehouse:
            store = warehouse.store
            if names is None:
                left = registry.stored_datasets(store, namespace).select_names(datasets, every=every)
            found |= asked(left, lambda each: verify(store, each, registry.renamings))
    return [verdict_of(each, verdict) for each, verdict in found.items() if verdict is not None]


def all_valid(found: "Sequence[Verdict]") -> bool:
    """Whether no dataset has a problem."""
    return not any(each.problems for each in found)


def _print_verdicts(found: "Sequence[Verdict]") -> None:
    for each in found:
        for problem in each.problems:
            offsets = " (offsets {} to {})".format(*problem.offsets) if problem.offsets else ""
            print_line(f"{each.dataset.name}: {problem.what}: {problem.message}{offsets}")
    for each in found:
        if each.error is not None:
            print_error(each.error.to_dict(), f"{each.dataset.name}: ")
    bad, unread = sum(bool(each.problems) for each in found), sum(each.error is not None for each in found)
    console.print(f"{len(found) - bad - unread} dataset(s) are valid")
    if bad:
        console.print(f"{bad} dataset(s) differ from what was committed")
    if unread:
        console.print(f"{unread} dataset(s) cannot be read")


def _verdict_fields(verdict: "Verdict") -> dict[str, Any]:
    """A verdict as JSON shows it, with NULL for what an error left unknown."""
    if verdict.error is not None:
        unknown = dict.fromkeys(VERDICT)
        return {
            **unknown,
            "dataset": verdict.dataset.name,
            "problems": [],
            "error": verdict.error.to_dict(),
        }
    problems = [
        {
            "sequence": each.sequence,
            "offsets": list(each.offsets) if each.offsets else None,
            "what": each.what,
            "message": each.message,
        }
        for each in verdict.problems
    ]
    return {
        "dataset": verdict.dataset.name,
        "valid": verdict.valid,
        "blocks": verdict.blocks,
        "rows": verdict.rows,
        "problems": problems,
    }


def _column_rows(each: "Inspected") -> list[dict[str, Any]]:
    fields = each.schema["fields"] if each.schema else ()
    return [
        {"dataset": each.dataset.name, "column": field["name"], "type": type_text(field["type"])}
        for field in fields
    ]


def type_text(type_: Any) -> str:
    """A type of a manifest in a word: `Int64`, `Decimal(12, 2)`, `String, optional`."""
    if not isinstance(type_, dict):
        return str(type_)
    kind = type_["kind"]
    if kind == "Option":
        return f"{type_text(type_['inner'])}, optional"
    more = [str(value) for name, value in type_.items() if name != "kind" and isinstance(value, str | int)]
    return f"{kind}({', '.join(more)})" if more else kind


def _show_documents(documents: list[dict[str, Any]], options: Options) -> None:
    from backstory.doors.odf.inspecting import as_yaml

    if options.answer == "json":
        show(documents, "json")
    else:
        sys.stdout.write("---\n".join(as_yaml(each) for each in documents))
