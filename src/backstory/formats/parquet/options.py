"""How a Parquet file is read (section 1.6)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """A Parquet file; `strict` is whether columns that nobody declares are refused."""

    strict: bool = False
