"""Files as a manifest's `read` returns them, for tests."""

from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from backstory.doors.odf.columns import arrow_schema
from backstory.doors.odf.file_rows import read_options
from backstory.doors.odf.manifest.data_schema import DataSchema, ddl_schema
from backstory.doors.odf.manifest.events import Read
from backstory.errors import BackstoryError
from backstory.formats.reading import rows_of

READ = TypeAdapter(Read)


def ddl(*columns: str) -> pa.Schema:
    return arrow_schema(ddl_schema(columns))


def declared(**types: object) -> pa.Schema:
    """Columns of these types as a manifest's `schema` declares them."""
    fields = [{"name": name, "type": type_} for name, type_ in types.items()]
    return arrow_schema(DataSchema.model_validate({"fields": fields}))


def optional(type_: object) -> dict:
    return {"kind": "Option", "inner": type_}


def table_of(path: Path, schema: pa.Schema | None = None, /, **read: object) -> pa.Table:
    rows = rows_of(path, path.name, read_options(READ.validate_python(read)), schema)
    return pa.Table.from_batches(list(rows.batches), rows.schema)


def refusal(path: Path, schema: pa.Schema | None = None, /, **read: object) -> BackstoryError:
    with pytest.raises(BackstoryError) as stop:
        table_of(path, schema, **read)
    return stop.value
