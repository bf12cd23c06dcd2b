"""Look at Open Data Fabric datasets: `list`, `inspect`, `tail`, `verify`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from backstory.cli.asking import opened
from backstory.cli.options import NOT_NEGATIVE, Flag, Options
from backstory.cli.outcomes import short
from backstory.cli.output import console, errors, show
from backstory.errors import UsageError, Violated

if TYPE_CHECKING:
    from backstory.doors.odf.door import Inspected, Verdict

DEFAULTS = Options()
LISTED = ("dataset", "source", "merge", "pulled", "records", "blocks", "watermark")
LINTS = ("dataset", "code", "level", "place", "message", "remedy")


def list_(*, namespace: str = "odf", options: Options = DEFAULTS) -> None:
    """List the datasets: source, strategy, last pull, records, blocks, watermark.

    Args:
        namespace: Schema of the datasets' tables.
        options: Common options.
    """
    with opened(options, brief=True) as warehouse:
        rows = warehouse.datasets(namespace=namespace)
    if options.answer == "table":
        rows = [_listed(row) for row in rows]
    show(rows, options.answer, LISTED)


def _listed(row: dict[str, Any]) -> dict[str, Any]:
    """A dataset as people read it in a row."""
    times = {name: row[name] and short(row[name]) for name in ("pulled", "watermark")}
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
        resolved: Only the manifest, with every default filled in.
        schema: Only the columns.
        lints: Only what is odd in the manifest.
        namespace: Schema of the datasets' tables.
        options: Common options.
    """
    from backstory.doors.odf import door

    if door.is_file(dataset):
        found = door.inspected_file(Path(dataset))
    else:
        with opened(options) as warehouse:
            found = [warehouse.inspect(dataset, namespace=namespace)]
    if schema:
        columns = [row for each in found for row in _columns(each)]
        show(columns, options.answer, ("dataset", "column", "type"))
    elif lints:
        rows = [{"dataset": each.dataset.name, **lint.to_dict()} for each in found for lint in each.lints]
        if rows or options.answer != "table":
            show(rows, options.answer, LINTS)
        else:
            console.print("Nothing is odd.")
    else:
        _show_documents([each.resolved if resolved else each.to_dict() for each in found], options)


def tail(
    dataset: str,
    /,
    *,
    limit: Annotated[int, Parameter(alias="-n", validator=NOT_NEGATIVE)] = 10,
    skip: Annotated[int, Parameter(alias="-s", validator=NOT_NEGATIVE)] = 0,
    namespace: str = "odf",
    options: Options = DEFAULTS,
) -> None:
    """Show the newest rows of a dataset, the very newest last.

    Args:
        dataset: Name of the dataset.
        limit: At most so many rows.
        skip: Leave out so many of the very newest.
        namespace: Schema of the datasets' tables.
        options: Common options.
    """
    from backstory.doors.odf.inspecting import newest_rows, symbols
    from backstory.doors.odf.registry import existing

    with opened(options) as warehouse:
        found = existing(warehouse.store, namespace, dataset)
        frame = newest_rows(warehouse.store, found, limit, skip)
        rows = frame.toArrow().to_pylist()
    if options.answer == "table":
        for name, words in symbols(found).items():
            rows = [{**row, name: words.get(row[name], row[name])} for row in rows]
    show(rows, options.answer, frame.columns)


def verify(
    *datasets: str,
    all: Flag = False,  # noqa: A002 - the option's name
    namespace: str = "odf",
    options: Options = DEFAULTS,
) -> int:
    """Check that datasets are what their commits said: chain, log, offsets, rows and columns.

    Compaction and expired snapshots change nothing. Exit code 4 if anything differs.

    Args:
        datasets: Names of datasets.
        all: Every dataset of the warehouse.
        namespace: Schema of the datasets' tables.
        options: Common options.
    """
    from backstory.doors.odf import door

    if not datasets and not all:
        raise UsageError("no-dataset", "No dataset is named.", "Name datasets, or write --all.")
    with opened(options) as warehouse:
        found = door.verified(warehouse.store, datasets, namespace=namespace, every=all)
    if options.answer == "table":
        _tell_verdicts(found)
    else:
        show(
            [_told(each) for each in found],
            options.answer,
            ("dataset", "valid", "blocks", "rows", "problems"),
        )
    return 0 if all_valid(found) else Violated.exit_code


def all_valid(found: "Sequence[Verdict]") -> bool:
    """Whether no dataset has a problem."""
    return not any(each.problems for each in found)


def _tell_verdicts(found: "Sequence[Verdict]") -> None:
    for each in found:
        for problem in each.problems:
            offsets = " (offsets {} to {})".format(*problem.offsets) if problem.offsets else ""
            errors.print(f"{each.dataset.name}: {problem.what}: {problem.message}{offsets}", markup=False)
    bad = sum(not each.valid for each in found)
    console.print(f"{len(found) - bad} dataset(s) are valid")
    if bad:
        console.print(f"{bad} dataset(s) are not what was committed")


def _told(verdict: "Verdict") -> dict[str, Any]:
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


def _columns(each: "Inspected") -> list[dict[str, Any]]:
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
