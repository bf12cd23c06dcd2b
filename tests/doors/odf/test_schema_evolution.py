"""Added, removed and changed columns in batches and manifests (odf-ingest.md, section 2.8; O22)."""

from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, counts, e, lines
from manifesting import manifest, push

from backstory.errors import UsageError

APPEND = "{kind: append}"
CITIES = "city STRING, population INT"
WITH_URL = "city STRING, population INT, census_url STRING"


@pytest.fixture
def dataset(store, tmp_path):
    return partial(Dataset, store, tmp_path, namespace="odf_schemas")


def schema(*fields: str) -> str:
    return f"{{kind: setDataSchema, schema: {{fields: [{', '.join(fields)}]}}}}"


def column(name: str, kind: str, *, optional: bool = False, extra: str = "") -> str:
    type_ = f"{{kind: option, inner: {{kind: {kind}}}}}" if optional else f"{{kind: {kind}}}"
    return f"{{name: {name}, type: {type_}{extra}}}"


# Batches


def test_a_batch_must_have_the_columns_of_the_dataset(dataset):  # R62, R63, R66, B38, E4, D17, D18
    """Columns match by name in any order. A new, missing or retyped one refuses the batch with its types."""
    life = dataset(APPEND)
    life.push("A,1", header="city,population")
    assert life.push("2,B", header="population,city").counts == counts(appended=1)
    assert life.push("C, D,", header="city,population").counts == counts(appended=2)
    error = life.refused("E,1,u", header="city,population,census_url", code="incompatible-schema")
    assert (error.keys, "backstory add" in error.remedy) == (["census_url"], True)
    error = life.refused("E", header="city", code="incompatible-schema")
    assert error.message == "The batch lacks the column population (bigint)."
    error = life.refused("E,many", header="city,population", code="incompatible-schema")
    assert "population has the wrong type: expected bigint, but found string" in error.message
    assert life.refused("E,1", header="City,population", code="incompatible-schema").keys == ["City"]
    assert life.refused("E,1,2", header="city,population,population", code="repeated-column").keys
    assert life.data("city", "population") == [("A", 1), ("B", 2), ("C", None), ("D", None)]
    with life.unchanged(), pytest.raises(UsageError, match="column city as a system column"):
        life.add(after=("{kind: setVocab, offsetColumn: city}",))


def test_the_first_delivery_fixes_the_columns(dataset):  # B48, section 2.8: including one without rows
    """A header suffices if the manifest declares types, but nothing else is committed for it."""
    life = dataset(APPEND, columns="city STRING, population STRING")
    first = life.push("")
    assert (first.status, first.counts, first.watermark, life.commits()) == ("up-to-date", counts(), None, 1)
    assert life.frame.columns[-2:] == ["city", "population"]
    with life.unchanged():
        life.push("")
    assert life.push("A,x").offsets == (0, 0)
    assert life.log() == ["0 s3 e3 A x"]


def test_empty_lists_and_nulls_fit_any_type(dataset):  # R66, D18: including within lists and structs
    """Empty lists fit lists of numbers. Values never become NULL to fit."""
    life = dataset(APPEND, read="{kind: ndJson}")
    life.push_texts('{"k": "A", "tags": [1, 2], "at": {"x": 1, "y": "n"}}\n', ending="json")
    life.push_texts('{"k": "B", "tags": [], "at": {"x": null, "y": null}}\n', ending="json")
    assert life.data("k", "tags")[1] == ("B", [])
    assert life.rows()[1]["at"] == {"x": None, "y": None}
    with life.unchanged():
        text = '{"k": "C", "tags": [], "at": {"x": "many", "y": null}}\n'
        error = life.error(life.push_texts(text, ending="json"), "incompatible-schema")
    assert "expected struct<x:bigint,y:string>, but found struct<x:string,y:void>" in error.message


def test_inferred_columns_without_values_have_no_fixed_type(dataset):  # section 2.8, D18
    """If types are inferred, a header without rows settles no type. The first values do."""
    life = dataset(APPEND)
    assert life.push("", header="event_time,k,v").counts == counts()
    assert life.push("2024-02-01,A,1", header="event_time,k,v").counts == counts(appended=1)
    assert life.frame.schema["v"].dataType.simpleString() == "bigint"
    assert life.log() == ["0 s2 2024-02-01 A 1"]


def test_a_required_column_accepts_no_null(dataset):  # B52a, R64, section 2.8
    """A batch with an optional column is accepted as long as it has no NULL. Otherwise the count is reported."""
    fields = schema(column("city", "string"), column("population", "int64"))
    life = dataset(APPEND, after=(fields,))
    assert life.push("A,1 B,2", header="city,population").counts == counts(appended=2)
    error = life.refused("C,3 D, E,", header="city,population", code="null-in-required-column")
    assert error.message == "Column `population` contains 2 null values while none were expected."
    assert error.keys == ["population"]


def test_a_dataset_can_declare_its_columns(dataset):  # O22, R13: system columns listed, or left out
    """The table has the columns before the first row, and a batch with other columns is refused."""
    own = [column("city", "string"), column("population", "int64", optional=True)]
    system = [column("offset", "uInt64"), column("op", "uInt8"), column("system_time", "timestamp")]
    for fields in (own, [*system, column("event_time", "timestamp"), *own]):
        life = dataset("{kind: append, encoding: op}", after=(schema(*fields),))
        life.add()
        assert life.frame.columns == ["offset", "op", "system_time", "event_time", "city", "population"]
        assert life.refused("A", header="city", code="incompatible-schema").keys == ["population"]
        life.push("A,1", header="city,population")
        assert life.log() == ["0 +A s2 e2 A 1"]


def test_narrow_numbers_fit_wide_columns_but_not_vice_versa(dataset, tmp_path):  # R62, section 2.8
    def push(life, *types):
        path = tmp_path / f"{life.name}-{life.deliveries}.parquet"
        names = ("k", "x", "d")
        row = dict(zip(names, (1, 1.5, 2), strict=True))
        pq.write_table(pa.Table.from_pylist([row], pa.schema(list(zip(names, types, strict=True)))), path)
        return life.push_files(path)

    narrow = (pa.int32(), pa.float32(), pa.decimal128(5, 1))
    wide = (pa.int64(), pa.float64(), pa.decimal128(9, 2))
    life = dataset(APPEND, read="{kind: parquet}")
    push(life, *wide)
    assert push(life, *narrow).counts == counts(appended=1)
    other = dataset(APPEND, read="{kind: parquet}")
    push(other, *narrow)
    with other.unchanged():
        error = other.error(push(other, *wide), "incompatible-schema")
    assert "k has the wrong type: expected int, but found bigint" in error.message
    assert [str(row["d"]) for row in life.rows()] == ["2.00", "2.00"]


def test_nested_values_survive_the_next_delivery(dataset):  # section 1.9, law 5 of the log: rows never change
    """This includes values whose schema excludes NULL, which no table can guarantee."""
    fields = (
        *("{name: k, type: {kind: string}}", "{name: l, type: {kind: list, itemType: {kind: int32}}}"),
        "{name: o, type: {kind: struct, fields: [{name: a, type: {kind: int32}}, {name: b, type: {kind: option, inner: {kind: string}}}]}}",
        "{name: t, type: {kind: uInt8}}",
    )
    life = dataset(
        "{kind: snapshot, primaryKey: [k], encoding: op}",
        read=f"{{kind: ndJson, schema: {{fields: [{', '.join(fields)}]}}}}",
    )
    rows = '{"k":"A","l":[1,2],"o":{"a":1,"b":null},"t":255}\n'
    life.push_texts(rows, ending="json")
    columns = life.table.iceberg.schema().toString()
    life.push_texts(rows + rows.replace('"A"', '"B"').replace("[1,2]", "[]"), ending="json")
    assert life.table.iceberg.schema().toString() == columns
    assert life.push_texts(rows.replace("[1,2]", "[2,1]"), ending="json").counts == counts(
        corrected=1, retracted=1
    )
    assert [row["l"] for row in life.rows()] == [[1, 2], [], [1, 2], [2, 1], []]
    assert life.rows()[0]["o"] == {"a": 1, "b": None}


def test_maps_cannot_be_compared(dataset, tmp_path):  # section 2.1
    """If rows are compared, maps are refused with a remedy. Append accepts them."""
    path = tmp_path / "maps.parquet"
    types = pa.schema([("k", pa.string()), ("m", pa.map_(pa.string(), pa.int32()))])
    pq.write_table(pa.Table.from_pylist([{"k": "A", "m": [("x", 1)]}], types), path)
    life = dataset("{kind: snapshot, primaryKey: [k], compareColumns: [k]}", read="{kind: parquet}")
    with life.unchanged():
        assert life.error(life.push_files(path), "bad-input-schema").keys == ["m"]
    life.add(preprocess="{kind: sql, engine: spark, query: 'select k, map_entries(m) as m from input'}")
    life.push_files(path)
    assert life.push_files(path).counts == counts(unchanged=1)
    life = dataset(APPEND, read="{kind: parquet}")
    life.push_files(path)
    life.push_files(path)
    assert [dict(row["m"]) for row in life.rows()] == [{"x": 1}, {"x": 1}]


def test_unknown_fields_are_ignored_or_refused(dataset):  # O14, section 2.8
    read = "{kind: ndJson, unknownFields: %s, ddlSchema: [k STRING]}"
    life = dataset(APPEND, read=read % "ignore")
    assert life.push_texts('{"k": "A", "x": 1}\n', ending="json").counts == counts(appended=1)
    life.add(read=read % "error")
    with life.unchanged():
        error = life.error(life.push_texts('{"k": "B", "x": 1}\n', ending="json"), "unknown-fields")
    assert "x" in error.message


# Manifests


@pytest.mark.parametrize(
    ("merge", "outcome", "table"),
    [
        (
            "{kind: append, encoding: op}",  # B44, B45
            counts(appended=4),
            ["3 +A s2 e2 A 1 -", "4 +A s2 e2 B 2 u", "5 +A s2 e2 C 3 -", "6 +A s2 e2 D 4 v"],
        ),
        (
            "{kind: ledger, primaryKey: [city], eventTimeInKey: false, encoding: op}",  # B46
            counts(appended=1, unchanged=2, conflicts=1),
            ["3 +A s2 e2 D 4 v"],
        ),
        (
            "{kind: snapshot, primaryKey: [city], encoding: op}",  # B47
            counts(appended=1, corrected=1, unchanged=2),
            ["3 -C s2 e1 B 2 -", "4 +C s2 e2 B 2 u", "5 +A s2 e2 D 4 v"],
        ),
    ],
    ids=["append", "ledger", "snapshot"],
)
def test_an_optional_column_is_added(dataset, merge, outcome, table):  # R64, R65, O22
    """The manifest and its source add it. Old rows have NULL, and rows may omit the field."""
    read = "{kind: ndJson, ddlSchema: [city STRING, population INT%s]}"
    life = dataset(merge, read=read % "")
    rows = '{"city":"A","population":1%s}\n{"city":"B","population":2%s}\n{"city":"C","population":3%s}\n'
    life.push_texts(rows % ("", "", ""), ending="json")
    assert life.add(read=read % ", census_url STRING").status == "updated"
    more = (
        rows % ("", ',"census_url":"u"', ',"census_url":null')
        + '{"city":"D","population":4,"census_url":"v"}\n'
    )
    assert life.push_texts(more, ending="json").counts == outcome
    assert life.log() == [f"{n} +A s1 e1 {city} {n + 1} -" for n, city in enumerate("ABC")] + table


def test_a_manifest_may_not_change_the_meaning_of_stored_rows(dataset):  # R65, O22
    """Removed, renamed, retyped and required columns, and another strategy, key or encoding, are refused."""
    life = dataset("{kind: snapshot, primaryKey: [city], encoding: op}", CITIES)
    life.push("A,1 B,2")
    original = (life.columns, life.merge)
    for columns in (
        "city STRING",
        "city STRING, people INT",
        "city STRING, population STRING",
        "city STRING, population INT NOT NULL",
        f"{CITIES}, census_url STRING NOT NULL",
    ):
        with life.unchanged(), pytest.raises(UsageError) as refused:
            life.add(columns=columns)
        assert (refused.value.code, refused.value.exit_code) == ("incompatible-schema", 2)
        assert refused.value.remedy
    life.columns, life.merge = original
    for merge in (
        "{kind: ledger, primaryKey: [city], encoding: op}",
        "{kind: snapshot, primaryKey: [city]}",
        "{kind: snapshot, primaryKey: [city, population], encoding: op}",
    ):
        with life.unchanged(), pytest.raises(UsageError) as refused:
            life.add(merge=merge)
        assert refused.value.code == "other-meaning"
    life.columns, life.merge = original
    with life.unchanged():
        assert life.add().status == "unchanged"
    # The dataset continues as before.
    assert life.push("A,1").counts == counts(retracted=1, unchanged=1)


def test_a_ledger_keeps_its_key_while_it_has_rows(dataset):
    """No step loses the key: a manifest without the source, the event time in the key, another source."""
    life = dataset("{kind: ledger, primaryKey: [k], encoding: op}", "event_time DATE, k STRING")
    life.push("2024-02-01,A")
    bare = f"kind: DatasetSnapshot\nversion: 1\ncontent: {{name: {life.name}, kind: Root, metadata: []}}\n"
    untimed = life.manifest().replace("[k]", "[k], eventTimeInKey: false")
    other = push("{kind: upsertStream, primaryKey: [k]}", "two")
    for text in (bare, untimed, manifest(push(life.merge), other).replace("cities", life.name)):
        with life.unchanged(), pytest.raises(UsageError) as refused:
            life.add(text)
        assert refused.value.code == "other-meaning"
    life.add(manifest(push(life.merge), push(life.merge, "two")).replace("cities", life.name))


def test_a_manifest_may_change_freely_before_the_first_rows(dataset):  # O22
    """Strategy, key, encoding and columns may change, and the table follows the last manifest."""
    life = dataset("{kind: snapshot, primaryKey: [city]}", CITIES)
    life.add()
    life.add(merge="{kind: ledger, primaryKey: [id]}", columns="id INT, event_time DATE")
    assert life.frame.columns == ["offset", "system_time", "event_time"]
    life.add(merge="{kind: upsertStream, primaryKey: [id]}")
    assert life.frame.columns == ["offset", "op", "system_time", "event_time"]
    life.push("1,2024-02-01 2,2024-02-02")
    assert life.log() == ["0 +A s1 2024-02-01 1", "1 +A s1 2024-02-02 2"]


def test_a_manifest_may_change_vocabulary_and_optional_columns(
    dataset,
):  # R65, O22: attributes, order, vocabulary, information
    """System columns are renamed in the table, and rows keep their values. The order of columns does not
    matter."""
    fields = [column("city", "string"), column("population", "int64", optional=True)]
    life = dataset("{kind: ledger, primaryKey: [city], encoding: op}", after=(schema(*fields),))
    life.push("A,1", header="city,population")
    described = column("city", "string", extra=', extra: {"opendatafabric.org/description": "its name"}')
    vocab = "{kind: setVocab, offsetColumn: nr, operationTypeColumn: what, systemTimeColumn: learnt, eventTimeColumn: at}"
    after = (
        schema(fields[1], described, column("census_url", "string", optional=True)),
        vocab,
        "{kind: setInfo, description: Cities}",
    )
    assert life.add(after=after).status == "updated"
    assert life.push("u,A,1 v,B,2", header="census_url,city,population", event_time=e(1)).counts == counts(
        appended=1, conflicts=1
    )
    names = ["nr", "what", "learnt", "at", "city", "population", "census_url"]
    assert [list(row) for row in life.rows()] == [names, names]
    assert [list(map(str, row.values()))[4:] for row in life.rows()] == [["A", "1", "None"], ["B", "2", "v"]]


def test_event_times_keep_their_type(dataset):  # 2.1 step 1, section 2.8; law 5 of the log: rows never change
    """Days stay days, and instants stay instants. A row without a time gets the day of its delivery."""
    life = dataset("{kind: ledger, primaryKey: [k]}", "event_time DATE, k STRING")
    life.push("2024-02-01,A")
    with life.unchanged(), pytest.raises(UsageError, match="changes the type of the column event_time"):
        life.add(columns="event_time TIMESTAMP, k STRING")
    made = "{kind: sql, engine: spark, query: 'select %s k from input'}"
    life.add(columns="event_time DATE, k STRING", preprocess=made % "timestamp(event_time) as event_time,")
    error = life.refused("2024-02-02,B", code="incompatible-schema")
    assert "event_time has the wrong type: expected date, but found timestamp" in error.message
    life.add(preprocess=made % "2024 as event_time,")
    assert life.refused("2024-02-02,B", code="incompatible-schema").keys == ["event_time"]
    life.add(preprocess=made % "null as event_time,")
    life.push("2024-02-02,B")
    life.add(preprocess=made % "")
    life.push("2024-02-02,C")
    assert life.log() == lines("""
        0 s1 2024-02-01 A
        1 s4 2024-01-04 B
        2 s5 2024-01-05 C
    """)


def test_a_new_vocabulary_renames_the_columns_of_a_declared_schema(dataset):  # O22, R13
    """This includes columns that only the dataset's source defines."""
    life = dataset("{kind: snapshot, primaryKey: [k]}", "event_time TIMESTAMP, k STRING")
    life.push("2024-02-01T00:00:00Z,A")
    life.add(columns="at TIMESTAMP, k STRING", after=("{kind: setVocab, eventTimeColumn: at}",))
    assert life.push("2024-02-01T00:00:00Z,A ,B").counts == counts(appended=1, unchanged=1, late=1)
    assert list(life.rows()[0]) == ["offset", "system_time", "at", "observed", "k"]


def test_the_former_name_of_a_system_column_is_refused(dataset):
    """Old rows would have two columns of this name, so `add` asks for another name."""
    life = dataset("{kind: snapshot, primaryKey: [k]}", "event_time DATE, k STRING")
    life.push("2024-02-01,A")
    vocab = ("{kind: setVocab, eventTimeColumn: at}",)
    with life.unchanged(), pytest.raises(UsageError, match="former name") as refused:
        life.add(columns="at DATE, k STRING, event_time DATE", after=vocab)
    assert refused.value.remedy == "Give the declared column another name, or leave it out."
    life.add(columns="at DATE, k STRING, known_at DATE")


def test_a_source_added_later_must_keep_the_encoding(dataset):  # O22, B69
    """Rows without operations stay so. Once there are rows, a source with operations is refused."""
    life = dataset("{kind: snapshot, primaryKey: [k]}", "k STRING, v INT")
    bare = f"kind: DatasetSnapshot\nversion: 1\ncontent: {{name: {life.name}, kind: Root, metadata: []}}\n"
    life.add(bare)
    life.push("A,1")
    with life.unchanged(), pytest.raises(UsageError) as refused:
        life.add()
    assert refused.value.code == "other-meaning"
    life.add(merge="{kind: append}", columns="k STRING, v BIGINT")
    life.push("A,2")
    assert life.data("k", "v") == [("A", 1), ("A", 2)]


def test_a_float_keeps_its_displayed_number_in_a_wider_column(dataset, tmp_path):
    """FLOAT 72.1 is 72.1 in a DOUBLE column, so a copy of the same numbers changes nothing."""
    life = dataset("{kind: snapshot, primaryKey: [k]}", read="{kind: parquet}")
    numbers = [72.1, 0.1, 66.0, -1e-7, 16777216.0, None]
    for number, type_ in enumerate((pa.float64(), pa.float32(), pa.float64())):
        path = tmp_path / f"floats-{number}.parquet"
        pq.write_table(pa.table({"k": range(len(numbers)), "x": pa.array(numbers, type_)}), path)
        answer = life.push_files(path)
        assert answer.error is None
        assert answer.counts == counts(**{"unchanged" if number else "appended": len(numbers)})
    assert [x for _, x in sorted(life.data("k", "x"))] == numbers
