"""The datasets that arguments name, or that manifests would add; nothing is written."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from backstory.doors.odf.data_types import arrow_schema, declared_schema
from backstory.doors.odf.file_rows import read_options
from backstory.doors.odf.lints import Lint, refuse_errors
from backstory.doors.odf.manifest.dataset import ENDINGS, Dataset, find_manifests, fold, read_manifests
from backstory.doors.odf.polling import check
from backstory.doors.odf.registry import DatasetRegistry, KnownDataset, Table
from backstory.errors import UsageError
from backstory.formats.reading import refuse_unwritable
from backstory.model.table import TableName
from backstory.stores.port import TableLike

# A name or a path as a user writes it, a path, or the table of a dataset.
Argument = str | Path | TableName
NAMED: Final = ("content", "name")


def is_file(one: str | Path) -> bool:
    """Whether an argument means a file of manifests, and not a dataset."""
    path = Path(one)
    return isinstance(one, Path) or path.suffix.lower() in ENDINGS or path.is_file()


def require_some(wanted: Sequence[Argument], *, every: bool) -> None:
    """Raise UsageError if no dataset is meant at all."""
    if not wanted and not every:
        raise UsageError(
            "no-dataset", "No dataset is named.", "Name datasets or manifests, or use `all=True`."
        )


def find_datasets(datasets: DatasetRegistry[Table], wanted: Iterable[Argument]) -> list[KnownDataset[Table]]:
    """The datasets that files, folders and names mean, each once; UsageError for any other argument."""
    read = [each for one in wanted for each in _datasets_of(datasets, one)]
    refuse_repeated(each for each in read if each.dataset.written is not None)
    return list({each.name: each for each in read}.values())


def _datasets_of(datasets: DatasetRegistry[Table], one: Argument) -> list[KnownDataset[Table]]:
    if isinstance(one, TableName):
        return [datasets.existing(one.name)]
    path = Path(one)
    if path.is_dir() and (isinstance(one, Path) or one.endswith("/")):
        return [
            each for file in find_manifests(path) for each in read_datasets(datasets, file, recursive=True)
        ]
    return read_datasets(datasets, path) if is_file(one) else [datasets.existing(str(one))]


def read_datasets(
    datasets: DatasetRegistry[Table], path: Path, *, recursive: bool = False
) -> list[KnownDataset[Table]]:
    """The datasets of a file as they would stand when it was added.

    Raises UsageError if two of its manifests are one dataset's.
    """
    found = []
    for document, snapshot in read_manifests(path, recursive=recursive):
        known = datasets.find(snapshot.content.name)
        dataset = fold(snapshot, path.absolute().parent, known=known is not None, written=document)
        name = known.name if known else TableName(datasets.namespace, dataset.name)
        found.append(KnownDataset(dataset, name, known.table if known else None))
    refuse_repeated(found)
    return found


def refuse_repeated(
    found: Iterable[KnownDataset[TableLike]], first: dict[str, Dataset] | None = None
) -> None:
    """Raise UsageError for the second manifest of a dataset: names are compared without case (R7).

    `first` holds the first manifest of each name before these, and gets theirs. The same manifest may be
    there again, as one of a folder and by its own name.
    """
    first = {} if first is None else first
    for each in found:
        one = each.dataset
        other = first.setdefault(one.name.lower(), one)
        if _origin(one) != _origin(other):
            raise UsageError(
                "repeated-name",
                f"{one.place(NAMED)}: the dataset {one.name} is already defined in {other.place(NAMED)}.",
                "Give one of them another name.",
            )


def check_manifest(dataset: Dataset, lint: Callable[[], Iterable[Lint]]) -> tuple[Lint, ...]:
    """The lints of a manifest; UsageError if it must not be added."""
    lints = tuple(lint())
    refuse_errors(lints)
    if dataset.polling is not None:
        check(dataset.polling.fetch)
    for _, source in dataset.sources():
        declared = declared_schema(source.read)
        options = read_options(source.read)
        if declared is not None:
            refuse_unwritable(options, arrow_schema(declared))
    return lints


def is_same(before: Dataset, after: Dataset) -> bool:
    """Whether a manifest brings nothing that was not added."""
    return before.document == after.document and before.folder == after.folder


def _origin(dataset: Dataset) -> tuple[Path, str, int | None]:
    """Where a manifest was written, however its path was spelled."""
    name = dataset.written.name if dataset.written else ""
    return dataset.folder.resolve(), Path(name).name, dataset.line(NAMED)
