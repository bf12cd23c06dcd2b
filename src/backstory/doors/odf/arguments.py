"""The datasets that command arguments name, by their names or by files of manifests.

Nothing is added here.
"""

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

# A name or a path as a string, a path, or the table of a dataset.
Argument = str | Path | TableName
NAMED: Final = ("content", "name")


def is_file(one: str | Path) -> bool:
    """Whether an argument is a file of manifests instead of the name of a dataset."""
    path = Path(one)
    return isinstance(one, Path) or path.suffix.lower() in ENDINGS or path.is_file()


def require_some(wanted: Sequence[Argument], *, every: bool) -> None:
    """Raise UsageError if there are no arguments, unless `every` is set."""
    if not wanted and not every:
        raise UsageError(
            "no-dataset", "No dataset is named.", "Name datasets or manifests, or use `all=True`."
        )


def find_datasets(datasets: DatasetRegistry[Table], wanted: Iterable[Argument]) -> list[KnownDataset[Table]]:
    """The datasets in files and folders and under names, each once.

    Raises UsageError for any other argument.
    """
    datasets_read = [dataset for argument in wanted for dataset in _datasets_of(datasets, argument)]
    refuse_repeated(dataset for dataset in datasets_read if dataset.dataset.written is not None)
    return list({dataset.name: dataset for dataset in datasets_read}.values())


def _datasets_of(datasets: DatasetRegistry[Table], argument: Argument) -> list[KnownDataset[Table]]:
    if isinstance(argument, TableName):
        return [datasets.existing(argument.name)]
    path = Path(argument)
    if path.is_dir() and (isinstance(argument, Path) or argument.endswith("/")):
        return [
            dataset
            for file in find_manifests(path)
            for dataset in read_datasets(datasets, file, recursive=True)
        ]
    return read_datasets(datasets, path) if is_file(argument) else [datasets.existing(str(argument))]


def read_datasets(
    datasets: DatasetRegistry[Table], path: Path, *, recursive: bool = False
) -> list[KnownDataset[Table]]:
    """The datasets of a file, as they will be once the file is added.

    Raises UsageError if two manifests are for the same dataset.
    """
    datasets_read = []
    for document, snapshot in read_manifests(path, recursive=recursive):
        known = datasets.find(snapshot.content.name)
        dataset = fold(snapshot, path.absolute().parent, known=known is not None, written=document)
        name = known.name if known else TableName(datasets.namespace, dataset.name)
        datasets_read.append(KnownDataset(dataset, name, known.table if known else None))
    refuse_repeated(datasets_read)
    return datasets_read


def refuse_repeated(
    datasets: Iterable[KnownDataset[TableLike]], first: dict[str, Dataset] | None = None
) -> None:
    """Raise UsageError for a second manifest of a dataset.

    Names are compared without case (R7). `first` has the first manifest of each earlier name; the new
    manifests are added to it. The same manifest may occur twice, once in a folder and once under its own
    path.
    """
    first = {} if first is None else first
    for known in datasets:
        dataset = known.dataset
        other = first.setdefault(dataset.name.lower(), dataset)
        if _origin(dataset) != _origin(other):
            raise UsageError(
                "repeated-name",
                f"{dataset.place(NAMED)}: the dataset {dataset.name} is already defined in "
                f"{other.place(NAMED)}.",
                "Give one of them another name.",
            )


def check_manifest(dataset: Dataset, lint: Callable[[], Iterable[Lint]]) -> tuple[Lint, ...]:
    """The lints of a manifest. Raises UsageError if the manifest cannot be added."""
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
    """Whether a manifest is unchanged, including its folder."""
    return before.document == after.document and before.folder == after.folder


def _origin(dataset: Dataset) -> tuple[Path, str, int | None]:
    """The folder, file name and line of a manifest, however its path was written."""
    name = dataset.written.name if dataset.written else ""
    return dataset.folder.resolve(), Path(name).name, dataset.line(NAMED)
