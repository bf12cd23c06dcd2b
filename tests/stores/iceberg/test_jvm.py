"""Only one place calls Iceberg's Java, and all of it is checked before use."""

import re
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
from committing import make
from destination import LIVE, Place
from test_architecture import MODULES, SOURCE, shown

from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.model.versions_layout import OF_ICEBERG
from backstory.stores.iceberg import jvm
from backstory.stores.iceberg.data_files import write_rows
from backstory.stores.iceberg.scripts import scan_tasks_of
from backstory.stores.iceberg.store import existing
from backstory.stores.table_files import local_path

FACADE = SOURCE / "stores" / "iceberg" / "jvm.py"
NAMES = ("scripts.py",)
SCRIPTS = {SOURCE / "stores" / "iceberg" / name for name in NAMES}
# Modules with settings: jars and classes that Spark itself loads.
SETTINGS = {"spark/jars.py", "spark/session.py", "stores/metadata/pyiceberg_catalog.py"}
# Classes that errors tell users to put into their settings.
IN_SETTINGS = {
    "spark.SparkCatalog",
    "spark.SparkSessionCatalog",
    "spark.extensions.IcebergSparkSessionExtensions",
}
# Modules that use Spark's own Java, which is not part of a store.
OF_SPARK = {
    "spark/frame_files.py",
    "spark/parsed_queries.py",
    "spark/session.py",
    "spark/versions.py",
}


def test_only_one_module_calls_icebergs_java():
    """No other module names a class of Iceberg or requests a session's Java."""
    texts = {shown(path): path.read_text("utf-8") for path in MODULES if path not in {FACADE, *SCRIPTS}}
    assert {name for name, text in texts.items() if "org.apache.iceberg" in text} == SETTINGS
    assert {name for name, text in texts.items() if "._jvm" in text} == OF_SPARK


def test_every_called_java_class_is_required_at_the_start(spark):
    """The list that a session must support contains exactly the classes that the module calls."""
    text = "".join(path.read_text(encoding="utf-8") for path in (FACADE, *SCRIPTS))
    called = set(re.findall(r'\biceberg\([^"]*"([^"]+)"\)', text))
    called |= set(re.findall(r"\{ICEBERG\}\.((?:[a-z]+\.)*[A-Z]\w*)", text)) - IN_SETTINGS
    assert called | {"spark.source.SparkRewriteTable"} == set(jvm.NEEDED)
    assert not jvm.missing_classes(spark._jvm)


def test_metadata_columns_of_iceberg_are_reserved_names(spark):
    """The reserved names are the names of Iceberg's metadata columns."""
    columns = spark._jvm.org.apache.iceberg.MetadataColumns
    names = {*OF_ICEBERG, "", "file", "pos", "_file_", "_FILE", "_change_type", "_op"}
    assert {name for name in names if columns.isMetadataColumn(name)} == OF_ICEBERG
    assert len(columns.metadataFieldIds()) == len(OF_ICEBERG)


def test_only_requested_files_are_planned(sender, store, schema):
    """One call plans them, with deletes. A file outside the table has no answer."""
    place = Place.made(sender, store, schema, LIVE, "id v n synced \n 1 a 1 T1 \n 2 b 1 T1")
    place.write(replace="id v n synced \n 3 c 1 T1")
    place.write(delete="id \n 1")
    table = existing(store, place.name)
    rows = store.spark.sql(f"SELECT id, _file FROM {store.sql_name(place.name)}").collect()
    files = {row.id: row["_file"] for row in rows}
    tasks = scan_tasks_of(store.jvm, table.iceberg, [files[2], "s3://elsewhere/file.parquet"])
    assert list(tasks) == [files[2]]
    assert len(tasks[files[2]].deletes()) == 1
    assert len(scan_tasks_of(store.jvm, table.iceberg, files.values())) == 2


def test_recorded_file_metrics_equal_icebergs_own(store):
    """Bounds, counts, sizes and row group offsets are correct without opening the file again."""
    types = {"k": "LONG", "t": "STRING", "d": "DOUBLE", "at": "UTC_DATETIME", "none": "STRING"}
    columns = tuple(Column(name, ColumnType.parse(type_)) for name, type_ in types.items())
    shape = Shape(TableName("told", "files"), columns, ("k",), Layout.FIVETRAN_LIVE)
    make(store, shape)
    table = existing(store, shape.table)
    rows = pa.table(
        {
            "k": pa.array(range(40_000), pa.int64()),
            "t": [f"a text of some length, {number % 7}" for number in range(40_000)],
            "d": pa.array([float("nan"), None] * 20_000, pa.float64()),
            "at": pa.array([datetime(1969, 12, 31, 23, tzinfo=UTC)] * 40_000, pa.timestamp("us", "UTC")),
            "none": pa.nulls(40_000, pa.string()),
        }
    )
    (file,) = write_rows(store, table, rows)
    java = store.jvm.org.apache.iceberg
    config = java.MetricsConfig.forTable(table.iceberg)
    read = java.parquet.ParquetUtil.fileMetrics(table.iceberg.io().newInputFile(file.location()), config)
    assert file.recordCount() == read.recordCount() == 40_000
    assert len(file.splitOffsets()) == 2
    for metric in ("columnSizes", "valueCounts", "nullValueCounts", "lowerBounds", "upperBounds"):
        assert getattr(file, metric)().equals(getattr(read, metric)())
        assert len(getattr(file, metric)()) >= 3


def test_only_repeated_values_are_written_with_a_dictionary(store):
    """A dictionary of unique values would be larger than the values and slower to read."""
    parts = (("a", ColumnType(Kind.LONG)), ("b", ColumnType(Kind.STRING)))
    types = {
        "k": ColumnType(Kind.STRING),
        "t": ColumnType(Kind.STRING),
        "s": ColumnType(Kind.STRUCT, parts=parts),
    }
    shape = Shape(
        TableName("told", "texts"),
        tuple(Column(*each) for each in types.items()),
        ("k",),
        Layout.FIVETRAN_LIVE,
    )
    make(store, shape)
    rows = [{"k": str(number), "t": str(number % 5), "s": {"a": 1, "b": "x"}} for number in range(100)]
    (file,) = write_rows(store, existing(store, shape.table), pa.Table.from_pylist(rows))
    group = pq.read_metadata(local_path(file.location())).row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    dictionaries = {each.path_in_schema: each.has_dictionary_page for each in columns}
    assert {"k": False, "t": True, "s.a": True, "s.b": True}.items() <= dictionaries.items()
