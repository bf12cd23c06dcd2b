"""A team with a project: a folder of files, its own schema, and a project file that it runs."""

import itertools
from pathlib import Path

import pytest
from committing import snapshots_of

from backstory.stores.iceberg.store import IcebergStore, load
from backstory.warehouse import Warehouse

SCHEMAS = (f"run_{number}" for number in itertools.count(1))


class Team:
    """A team with a folder of files, its own schema, and a project file."""

    def __init__(self, spark, folder):
        self.warehouse, self.folder, self.schema = (
            Warehouse(IcebergStore(spark), embedded=False),
            folder,
            next(SCHEMAS),
        )

    def write(self, name, text):
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def declare(self, text):
        self.write("histories.yaml", "format: histories/1\n" + text.replace("s.", f"{self.schema}."))

    @property
    def file(self) -> Path:
        return self.folder / "histories.yaml"

    def run(self, **options):
        """The receipts of a run, by their names without the schema."""
        receipts = self.warehouse.run(self.file, **options)
        return {each.name.removeprefix(f"{self.schema}."): each for each in receipts}

    def status(self, **options):
        return {name: each.status for name, each in self.run(**options).items()}

    def names_at(self, table, time=None):
        """The names in a table, now or at a time."""
        stored = self.warehouse.table(f"{self.schema}.{table}")
        rows = stored.current() if time is None else stored.as_of(time)
        return sorted(each["name"] for each in rows.collect())

    def commits(self, table):
        stored = load(self.warehouse.store, self.warehouse.table(f"{self.schema}.{table}").name)
        return len(snapshots_of(stored))


@pytest.fixture
def team(spark, tmp_path):
    return Team(spark, tmp_path)


def rows(*names):
    return "id,name\n" + "".join(f"{number},{name}\n" for number, name in enumerate(names, 1))
