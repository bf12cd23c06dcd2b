"""Datasets at a small scale, for tests: words become files, and the log of events becomes words again.

`push("A,1 B,2")` pushes a CSV of two rows below a header of the dataset's columns. An empty cell is NULL. The
n-th delivery has the system time `s(n)`. The time of its source, the fallback of its rows' event times, is
`e(n)`. `log()` has one line per event, such as `0 +A s1 e1 A 1`.
"""

import itertools
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from manifesting import HEAD, manifest, polling, push

from backstory.doors.odf import adding, door, receipts, registry
from backstory.doors.odf.door import PushedFiles
from backstory.errors import BackstoryError
from backstory.journal.chain import stored_journal
from backstory.model.table import TableName
from backstory.stores.iceberg.store import IcebergStore, existing

SYSTEM, EVENT = datetime(2049, 12, 31, tzinfo=UTC), datetime(2023, 12, 31, tzinfo=UTC)
DAYS = 300
SYMBOLS = ("+A", "-R", "-C", "+C")
NUMBERS = itertools.count(1)


def s(number: float) -> datetime:
    """The system time of the n-th delivery."""
    return SYSTEM + timedelta(days=number)


def e(number: float) -> datetime:
    """The event time of the n-th delivery."""
    return EVENT + timedelta(days=number)


def counts(**outcomes: int) -> dict[str, int]:
    """The counts of a receipt. Counts that are not named are 0."""
    nothing = dict.fromkeys(("appended", "retracted", "corrected", "unchanged", "conflicts", "late"), 0)
    return nothing | outcomes


def lines(text: str) -> list[str]:
    """The lines of a table as a string, with one space between words."""
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def word(value: object) -> str:
    """A value as tables show it. NULL is `-`, and an empty string is `""`."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        for letter, zero in (("s", SYSTEM), ("e", EVENT)):
            days = (value - zero) / timedelta(days=1)
            if 0 < days < DAYS and days == int(days):
                return f"{letter}{int(days)}"
        text = value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return text.removesuffix("-01-01T00:00:00Z")
    if isinstance(value, date):
        return value.isoformat()
    return str(value) or '""'


def add_datasets(
    store: IcebergStore, namespace: str, path: Path, *, dry_run: bool = False
) -> list[receipts.Added]:
    """Add every manifest in a file, or in a folder and its subfolders. The first error is raised."""
    wanted = registry.find_datasets(registry.stored_datasets(store, namespace), [path])
    return [adding.add_one(store, dataset, dry_run=dry_run) for dataset in wanted]


@dataclass
class Dataset:
    """A dataset, its manifest, and its delivered files.

    `columns` are the DDL of the columns that are read, or empty if they are inferred. With `fetch` the source is a
    polling source, and `file` is the name of the file that `pull` writes. The other fields are parts of
    the manifest, in YAML. `after` are events that follow the source.
    """

    store: IcebergStore
    folder: Path
    merge: str
    columns: str = ""
    read: str = ""
    preprocess: str = ""
    prepare: str = ""
    fetch: str = ""
    after: tuple[str, ...] = ()
    namespace: str = "datasets"
    name: str = field(default_factory=lambda: f"cities-{next(NUMBERS)}")
    file: str = "data.csv"
    deliveries: int = 0
    asked: dict[str, Any] = field(default_factory=dict)

    def manifest(self) -> str:
        """The current manifest."""
        parts = {"read": self.read or self._reading(), "preprocess": self.preprocess, "prepare": self.prepare}
        parts = {name: part for name, part in parts.items() if part}
        source = polling(self.merge, fetch=self.fetch, **parts) if self.fetch else push(self.merge, **parts)
        text = manifest(source, *self.after)
        return text.replace(HEAD, HEAD.replace("name: cities", f"name: {self.name}"))

    def _reading(self) -> str:
        if not self.columns:
            return "{kind: csv, header: true, inferSchema: true}"
        columns = ", ".join(f"'{column.strip()}'" for column in self.columns.split(","))
        return f"{{kind: csv, header: true, ddlSchema: [{columns}]}}"

    @property
    def header(self) -> str:
        """The names of the columns as the first line of a CSV."""
        return ",".join(column.split()[0] for column in self.columns.split(",") if column)

    def write_manifest(self, text: str | None = None) -> Path:
        """The file of the manifest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "manifest.yaml"
        path.write_text(text or self.manifest(), encoding="utf-8")
        return path

    def add(self, text: str | None = None, **changed: Any) -> receipts.Added:
        """Add the manifest after these changes of its fields."""
        for name, value in changed.items():
            setattr(self, name, value)
        [added] = add_datasets(self.store, self.namespace, self.write_manifest(text))
        return added

    def push(self, *texts: str, **options: Any) -> door.DatasetReceipt:
        """Push rows, one file for each string. Its header has the columns, unless another header is given."""
        header = options.pop("header", self.header)
        files = ["\n".join([header, *text.split(), ""]) for text in texts]
        return self.push_texts(*files, **options)

    def push_texts(self, *texts: str, ending: str = "csv", **options: Any) -> door.DatasetReceipt:
        """Push files with these contents."""
        self.folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for number, text in enumerate(texts, 1):
            paths.append(self.folder / f"push-{self.deliveries + 1}-{number}.{ending}")
            paths[-1].write_text(text, encoding="utf-8")
        return self.push_files(*paths, **options)

    def push_files(self, *paths: Path, source: str | None = None, **options: Any) -> door.DatasetReceipt:
        """Push files."""
        self._added()
        time = options.pop("event_time", e(self.deliveries + 1))
        pushed = PushedFiles(list(paths), source, time)
        request = self._next(**options)
        return door.ingest(self.store, self.name, pushed, request, namespace=self.namespace)

    def pull(self, text: str | None = None, **options: Any) -> door.DatasetReceipt:
        """Pull. If a string is given, first write it to the file, modified at `e(n)`."""
        self._added()
        if text is not None:
            path = self.folder / self.file
            path.write_text(text, encoding="utf-8")
            modified = options.pop("modified", e(self.deliveries + 1)).timestamp()
            os.utime(path, (modified, modified))
        request = self._next(**options)
        [receipt] = door.pull_all(self.store, [self.name], request, namespace=self.namespace)
        return receipt

    def _added(self) -> None:
        if not self.known:
            self.add()

    def _next(self, **options: Any) -> door.IngestRequest:
        self.deliveries += 1
        return door.IngestRequest(**{"system_time": s(self.deliveries), **self.asked, **options})

    @property
    def known(self) -> bool:
        """Whether the dataset was added."""
        return registry.stored_datasets(self.store, self.namespace).find(self.name) is not None

    @property
    def table(self):
        """The current state of its table."""
        return existing(self.store, TableName(self.namespace, self.name))

    @property
    def frame(self):
        """Its rows, as a frame."""
        return self.store.spark.table(self.store.sql_name(TableName(self.namespace, self.name)))

    def rows(self, version: int | None = None) -> list[dict[str, Any]]:
        """Its rows by offset, now or in a snapshot."""
        name = self.store.sql_name(TableName(self.namespace, self.name))
        as_of = "" if version is None else f" VERSION AS OF {version}"
        rows = self.store.spark.sql(f"SELECT * FROM {name}{as_of}").toArrow().to_pylist()
        return sorted(rows, key=lambda row: next(iter(row.values())))

    def log(self, start: int = 0) -> list[str]:
        """Its rows from an offset on, one line for each, with `op` as its symbol."""
        rows = self.rows()
        for row in rows:
            if isinstance(row.get("op"), int):
                row["op"] = SYMBOLS[row["op"]]
        return [" ".join(map(word, row.values())) for row in rows[start:]]

    def data(self, *names: str) -> list[tuple[Any, ...]]:
        """The values of some columns, by offset."""
        return [tuple(row[name] for name in names) for row in self.rows()]

    def commits(self) -> int:
        """The number of snapshots of its table."""
        return self.table.iceberg.snapshots().__len__()

    def newest(self):
        """The newest block."""
        return stored_journal(self.store, self.table).newest()

    @contextmanager
    def unchanged(self):
        """Check that a block of a test does not change the table, its head and its columns (R21)."""
        self._added()
        before = self._standing()
        yield
        assert self._standing() == before

    def _standing(self) -> tuple[Any, ...]:
        head = self.newest()
        location = self.table.iceberg.operations().current().metadataFileLocation()
        return location, self.commits(), head.hash if head else None

    def refused(self, *texts: str, code: str, exit_code: int = 3, **options: Any) -> BackstoryError:
        """The error of a push, which changes nothing."""
        with self.unchanged():
            receipt = self.push(*texts, **options)
        assert (receipt.offsets, receipt.counts) == (None, counts())
        return self.error(receipt, code, exit_code)

    def error(self, receipt: door.DatasetReceipt, code: str, exit_code: int = 3) -> BackstoryError:
        """The error of a receipt."""
        assert receipt.status == "failed", receipt
        assert (receipt.error.code, receipt.error.exit_code) == (code, exit_code), receipt.error
        assert receipt.error.message
        return receipt.error
