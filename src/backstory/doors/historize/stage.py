"""The stage input of a base table: a table, or a file, and which of its columns (decision H7)."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from backstory.doors.historize.model import ModelDataset
from backstory.formats.file_options import AS_EXPECTED, FileOptions
from backstory.formats.unchanged import Stamp, stamp_of
from backstory.formats.wrapping.batch_file import Format

# `data/customers.csv`, and `data/customers.csv.customer_id` with a column.
FILE = re.compile(r"(?P<file>.+\.(?:csv|parquet))(?:[.:#](?P<column>.+))?", re.IGNORECASE | re.DOTALL)
TABLE = re.compile(r"(?P<table>[^.]+\.[^.]+)(?:\.(?P<column>.+))?", re.DOTALL)


@dataclass(frozen=True)
class Stage:
    """`schema.table`, or the path of a file and how it is written."""

    name: str
    path: Path | None = None
    written: FileOptions = AS_EXPECTED

    @property
    def format(self) -> Format:
        """What a file holds."""
        return Format.PARQUET if self.name.lower().endswith(".parquet") else Format.CSV

    @cached_property
    def stamp(self) -> Stamp:
        """The file as it stands when a load first reads it; the load may read it more than once."""
        assert self.path is not None
        return stamp_of(self.path)

    @property
    def table(self) -> tuple[str, str]:
        """The schema and the name of a table."""
        schema, _, name = self.name.partition(".")
        return schema, name


def parse_input(text: str) -> tuple[str, str | None] | None:
    """The table or file that an `input` names, and its column if it names one; None if it names none."""
    if told := FILE.fullmatch(text):
        return told["file"], told["column"]
    if "/" not in text and (told := TABLE.fullmatch(text)):
        return told["table"], told["column"]
    return None


def stage_of(dataset: ModelDataset, folder: Path) -> Stage | None:
    """The stage input of a resolved dataset; a file's path is relative to the model's folder.

    Raises UsageError for a `read` block that no reader takes, or that the input does not have.
    """
    if dataset.input is None:
        return None
    is_file = FILE.fullmatch(dataset.input)
    stage = Stage(dataset.input, folder / dataset.input if is_file else None, dataset.read.options())
    if not is_file:
        stage.written.refuse_all("a table")
    elif stage.format is Format.PARQUET:
        stage.written.refuse_all("Parquet files")
    return stage
