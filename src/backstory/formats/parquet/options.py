"""How a Parquet file is read (section 1.6)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """A Parquet file.

    Attributes:
        strict: whether columns that nobody declares are refused.
        naive: whether times without a zone, of columns that nobody declares, stay so; else they are UTC.
    """

    strict: bool = False
    naive: bool = False
