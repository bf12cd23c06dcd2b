"""Keys and hashes: the golden vectors, and Python against every database that runs here (R4 to R8, R31)."""

import hashlib
import itertools
import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from historizing import DAY, PEPPER, Place, dataset, document, load_of, model_of

from backstory.doors.historize.model import foreign_keys
from backstory.doors.historize.resolve import schema_of
from backstory.stores.sql.engine import fill_placeholders
from backstory.testing.conformance_bench import Hashes

KEY = "85248cfc5da10dc0f38df603a4f1298e0ee8b5215f5f580578ef14495039aac8"
GOLDEN = {
    f"customer_id~4711|mandant~100|{PEPPER}": KEY,
    f"customer_id~null_replaced|mandant~100|{PEPPER}": "a47d00c852f0a766a1239640d4dfda52bb72c2c4d33f5238149278fbdd039d46",
    "Müller|Köln|true|1.50|2025-01-02|null_replaced": "b8dbc53ba2a77343faa39af29a9df1b3ca9b08f7ab7fd1761895857236bedcf0",
    "active~true|city~Köln|credit~1.50|name~Müller|note~^0|since~2025-01-02": "3a6d89cb8781af3f3f8e8b3b59e7e45964adce980d0e445e6d2c3b9bb51b5180",
    f"rc_crm_customer_key~{KEY}|version_started_at~2025-01-02 03:04:05.600000|{PEPPER}": "3baf0599f25b0e87808baa0128b8cda612f0afffc85d337a7c4b9554d4da0d90",
    f"rc_crm_customer_key~{KEY}|version_started_at~2025-01-03 00:00:00.000000|{PEPPER}": "5c028800ca07705a3d31e6fafc1d0261bfa6868a8ff397a3510264457454862c",
}
WRONG = "9a3423a6e95bd9d7bedaf0657e4f7efde1ccc705889ada47ededb109c353441a"
NO_COLUMNS = "588b5a2faf9108d0ab23c03bfa04f68b14507bd78568c35fe6a8a3557f3a8954"
TEXTS = dict(zip(("key", "null_key", "row_v1", "row_v2", "first", "second"), GOLDEN.values(), strict=True))
CUSTOMER = (
    "customer_id:BIGINT* mandant:STRING(3)* name city active:BOOLEAN credit:DECIMAL(10,2) since:DATE note"
)
ROW = {
    "customer_id": 4711,
    "mandant": "100",
    "name": "Müller",
    "city": "Köln",
    "active": True,
    "credit": Decimal("1.50"),
    "since": date(2025, 1, 2),
    "note": None,
}
ZONES = ["UTC", "Asia/Kolkata", "America/New_York"]
EVERY = (
    "k* t n:INTEGER b:BIGINT d:DECIMAL(38,10) e:DECIMAL(5,0) x:DECIMAL(6,6) w:BOOLEAN day:DATE clock:TIME "
    "at:TIMESTAMP bytes:BINARY id:UUID j:JSON"
)
EXTREMES = {
    "t": [
        "",
        " padded ",
        "Ünï↯code 🐘",
        "it's",
        "back\\slash",
        "a|b~c^d",
        "100%s",
        "{{ load_timestamp }}",
        "\n\t",
    ],
    "n": [0, -1, 2**31 - 1, -(2**31)],
    "b": [0, 2**63 - 1, -(2**63)],
    "d": [
        Decimal(0),
        Decimal("-0.0000000001"),
        Decimal("0.5"),
        Decimal("9" * 28 + "." + "9" * 10),
        Decimal("-1"),
    ],
    "e": [Decimal(0), Decimal(-99999), Decimal(7)],
    "x": [Decimal(0), Decimal("0.5"), Decimal("-0.000001"), Decimal("0.999999")],
    "w": [True, False],
    "day": [date(1, 1, 1), date(1582, 10, 10), date(1970, 1, 1), date(9999, 12, 31)],
    "clock": [time(0, 0), time(23, 59, 59, 999_999), time(1, 2, 3, 40)],
    "at": [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2025, 3, 30, 1, 30, tzinfo=UTC),
        datetime(2025, 11, 2, 5, 30, 0, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ],
    "bytes": [b"", b"\x00\xff'\\", bytes(range(256))],
    "id": [UUID("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"), UUID(int=0)],
    "j": ['{"b": 1,  "a": [1.0, null]}', "{}", '"it\'s \\u00fc"'],
}


def customer(profile="elevata_v1", name="rc_crm_customer"):
    model = model_of(document(dataset(CUSTOMER, name=name), hash_profile=profile))
    return model, model.target_datasets[0]


def in_zone(place, zone):
    place.sql(f"SET TIME ZONE '{zone}'")


def hashed(place, sql, table="", at=DAY):
    """The one value of an expression on the table `s`."""
    values = {
        "load_timestamp_text": place.dialect.string_literal(f"{at:%Y-%m-%d %H:%M:%S.%f}"),
        "pepper": place.dialect.string_literal(PEPPER),
    }
    return place.rows(fill_placeholders(f"SELECT {sql} {table}", values))[0][0]


@pytest.mark.parametrize("text", GOLDEN)
def test_the_texts_of_the_golden_vectors(text):
    """R4: The vectors are SHA-256 of these UTF-8 texts, and none is of UTF-16."""
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN[text]
    assert hashlib.sha256(text.encode("utf-16-le")).hexdigest() not in GOLDEN.values()
    assert hashlib.sha256(next(iter(GOLDEN)).encode("utf-16-le")).hexdigest() == WRONG


def test_golden_vectors_in_python():
    """R4, R5: The Python reference produces these keys and hashes."""
    texts = {}
    for profile, row_hash in (("elevata_v1", "row_v1"), ("strict_v2", "row_v2")):
        model, base = customer(profile)
        hashes = Hashes(schema_of(model, base), PEPPER)
        texts[row_hash] = hashes.row_hash(base, ROW)
        assert hashes.base_key(base, ROW) == TEXTS["key"]
    model, base = customer()
    hashes = Hashes(schema_of(model, base), PEPPER)
    texts["key"] = hashes.base_key(base, ROW)
    texts["null_key"] = hashes.base_key(base, ROW | {"customer_id": None})
    texts["first"] = hashes.hist_key(base, KEY, datetime(2025, 1, 2, 3, 4, 5, 600_000, UTC))
    texts["second"] = hashes.hist_key(base, KEY, datetime(2025, 1, 3, tzinfo=UTC))

    assert texts == TEXTS


@pytest.mark.parametrize("zone", ZONES)
def test_golden_vectors_in_a_database(place, zone):
    """R4, R6: SQL produces the same keys and hashes, in any session time zone."""
    model, base = customer()
    place.stage("s", CUSTOMER, [ROW])
    in_zone(place, zone)
    texts = {}
    for profile, name in (("elevata_v1", "row_v1"), ("strict_v2", "row_v2")):
        strict, strict_base = customer(profile)
        texts[name] = hashed(place, load_of(strict, place.dialect).row_hash("s"), "FROM stage.s AS s")
    load = load_of(model, place.dialect)
    texts["key"] = hashed(place, load.base_key("s"), "FROM stage.s AS s")
    entity = f"FROM (SELECT '{KEY}' AS rc_crm_customer_key) AS s"
    for name, at in (
        ("first", datetime(2025, 1, 2, 3, 4, 5, 600_000, UTC)),
        ("second", datetime(2025, 1, 3, tzinfo=UTC)),
    ):
        texts[name] = hashed(place, load.hist_key("s"), entity, at)
    place.sql("UPDATE stage.s SET customer_id = NULL")
    texts["null_key"] = hashed(place, load.base_key("s"), "FROM stage.s AS s")

    assert texts == TEXTS


def test_a_key_name_sorted_after_version_started_at_is_hashed_after_it():
    """2.3: The components of a history key are sorted by name, whichever is declared first."""
    model, base = customer(name="zz_customer")
    text = f"version_started_at~2025-01-02 00:00:00.000000|zz_customer_key~{KEY}|{PEPPER}"

    assert (
        Hashes(schema_of(model, base), PEPPER).hist_key(base, KEY, DAY)
        == hashlib.sha256(text.encode()).hexdigest()
    )


def test_a_base_without_attributes_has_a_fixed_hash(place):
    """2.4: A base with only keys has the hash of the text no_columns."""
    model = model_of(document(dataset("k*")))
    base = model.target_datasets[0]

    assert Hashes(schema_of(model, base), PEPPER).row_hash(base, {"k": "a"}) == NO_COLUMNS
    assert hashed(place, load_of(model, place.dialect).row_hash("s")) == NO_COLUMNS


def test_the_order_of_business_keys_does_not_matter(place):
    """R5: The order of the declared business keys changes no key, in Python and in SQL."""
    columns = ["b:BIGINT*", "a*", "c:DATE*"]
    row = {"a": "x", "b": 7, "c": date(2025, 1, 2)}
    place.stage("s", " ".join(columns), [row])
    keys = set()
    for order in itertools.permutations(columns):
        model = model_of(document(dataset(" ".join(order))))
        base = model.target_datasets[0]
        keys.add(Hashes(schema_of(model, base), PEPPER).base_key(base, row))
        keys.add(hashed(place, load_of(model, place.dialect).base_key("s"), "FROM stage.s AS s"))

    assert len(keys) == 1


@pytest.mark.parametrize("profile", ["elevata_v1", "strict_v2"])
@pytest.mark.parametrize("zone", ZONES)
def test_every_type_is_hashed_as_in_python(place, zone, profile):
    """R4, R6: All logical types at their extremes and NULL have the same hash, in any session zone."""
    model = model_of(document(dataset(EVERY), hash_profile=profile))
    base = model.target_datasets[0]
    empty = dict.fromkeys(EXTREMES)
    rows = [empty | {"k": "none"}]
    rows += [
        empty | {"k": f"{name} {n}", name: value}
        for name, values in EXTREMES.items()
        for n, value in enumerate(values)
    ]
    typed = [
        {name: str(value) if isinstance(value, UUID) else value for name, value in row.items()}
        for row in rows
    ]
    place.stage("s", EVERY, typed)
    in_zone(place, zone)
    load = load_of(model, place.dialect)
    hashes = Hashes(schema_of(model, base), PEPPER)
    pepper = {"pepper": place.dialect.string_literal(PEPPER)}
    sql = f"SELECT k, {load.base_key('s')}, {load.row_hash('s')} FROM stage.s AS s"
    computed = {k: (key, row_hash) for k, key, row_hash in place.rows(fill_placeholders(sql, pepper))}

    assert computed == {row["k"]: (hashes.base_key(base, row), hashes.row_hash(base, row)) for row in rows}


@pytest.mark.parametrize(
    ("hash_as", "values"),
    [
        ("DECIMAL(20,4)", [0.0, -0.0, 1.5, 0.1, 1e10, 123456.78905, 2.00005, -2.00005, 1e-7, -1e-7, None]),
        ("DECIMAL(4,4)", [0.0, 0.5, -0.1, -1e-7, 0.99985, None]),
    ],
)
@pytest.mark.parametrize("zone", ZONES)
def test_a_float_is_hashed_as_a_decimal(place, zone, hash_as, values):
    """R9, 2.4: With hash_as, a float is hashed as a decimal everywhere."""
    written = dataset("k* f")
    written["target_columns"][1] |= {"datatype": "FLOAT", "hash_as": hash_as}
    model = model_of(document(written))
    base = model.target_datasets[0]
    place.create("stage", "s", [column for column in base.target_columns if column.name in {"k", "f"}])
    place.insert("stage.s", [{"k": str(n), "f": value} for n, value in enumerate(values)])
    in_zone(place, zone)
    sql = load_of(model, place.dialect).row_hash("s")
    hashes = Hashes(schema_of(model, base), PEPPER)

    assert dict(place.rows(f"SELECT k, {sql} FROM stage.s AS s")) == {
        str(n): hashes.row_hash(base, {"k": str(n), "f": value}) for n, value in enumerate(values)
    }


def test_a_foreign_key_equals_the_key_of_its_parent(place):
    """R7: Equal values give equal keys, whatever the child's column names. NULL does not give NULL."""
    parent = dataset("region_code* land:INTEGER* a", name="rc_region")
    child = dataset("k* home_code home_land:BIGINT", name="rc_child") | {
        "references": [
            {
                "id": 17,
                "referenced_dataset": "rc_region",
                "reference_prefix": "home",
                "key_components": [
                    {"from": "home_code", "to": "region_code"},
                    {"from": "home_land", "to": "land"},
                ],
            }
        ]
    }
    for each, name in ((parent, "p"), (child, "c")):
        each["input"] = f"stage.{name}"
    place.use(document(child, parent))
    place.stage("p", "region_code* land:INTEGER* a", [{"region_code": "N|x", "land": 7, "a": "1"}])
    place.stage(
        "c",
        "k* home_code home_land:BIGINT",
        [{"k": "a", "home_code": "N|x", "home_land": 7}, {"k": "b", "home_code": None, "home_land": None}],
    )
    assert ["success"] * 2 == [receipt.status for receipt in place.loads("r1", 1)]

    assert [column.name for column in foreign_keys(place.dataset)] == ["home_rc_region_key"]
    ((key,),) = place.rows("SELECT rc_region_key FROM rawcore.rc_region_hist")
    keys = dict(place.rows("SELECT k, home_rc_region_key FROM rawcore.rc_child_hist"))
    null = hashlib.sha256(f"land~null_replaced|region_code~null_replaced|{PEPPER}".encode()).hexdigest()
    assert keys == {"a": key, "b": null}
    assert dict(place.rows("SELECT k, home_rc_region_key FROM rawcore.rc_child")) == keys


def test_strict_hashes_distinguish_all_tuples(place):
    """R8: strict_v2 separates all distinct tuples of a small set, and Python agrees."""
    words = [None, "", "|", "^", "~", "^0", "^p", "null_replaced", "a|b~c", "x~"]
    rows = [
        dict(zip("abc", each, strict=True)) | {"k": str(n)}
        for n, each in enumerate(itertools.product(words, repeat=3))
    ]
    assert_told_apart(place, "a* b c k", rows)


@pytest.mark.parametrize("seed", range(3))
def test_strict_hashes_distinguish_random_tuples(place, seed):
    """R8: The same holds for random texts of separator characters."""
    chance = random.Random(seed)
    texts = [
        None,
        *(
            "".join(chance.choices(["|", "^", "~", "0", "p", "b", "null_replaced"], k=n % 6))
            for n in range(400)
        ),
    ]
    tuples = {tuple(chance.choices(texts, k=3)) for _ in range(1500)}
    assert_told_apart(
        place,
        "a* b c k",
        [dict(zip("abc", each, strict=True)) | {"k": str(n)} for n, each in enumerate(tuples)],
    )


def assert_told_apart(place, columns, rows):
    """Check that distinct attributes have distinct hashes, and distinct keys distinct keys."""
    model = model_of(document(dataset("a* b c"), hash_profile="strict_v2"))
    base = model.target_datasets[0]
    hashes, load = Hashes(schema_of(model, base), PEPPER), load_of(model, place.dialect)
    place.stage("s", columns, rows)
    pepper = {"pepper": place.dialect.string_literal(PEPPER)}
    sql = f"SELECT k, {load.base_key('s')}, {load.row_hash('s')} FROM stage.s AS s"
    computed = {k: each for k, *each in place.rows(fill_placeholders(sql, pepper))}

    assert len({key for key, _ in computed.values()}) == len({row["a"] for row in rows})
    assert len({made for _, made in computed.values()}) == len({(row["b"], row["c"]) for row in rows})
    assert computed == {row["k"]: [hashes.base_key(base, row), hashes.row_hash(base, row)] for row in rows}


def test_the_known_collisions_of_the_old_profile():
    """2.4: In elevata_v1, a separator in a value and the NULL token collide."""
    model = model_of(document(dataset("k* b c")))
    base = model.target_datasets[0]
    hashes = Hashes(schema_of(model, base), PEPPER)

    assert hashes.row_hash(base, {"b": "a|b", "c": "c"}) == hashes.row_hash(base, {"b": "a", "c": "b|c"})
    assert hashes.row_hash(base, {"b": None, "c": "c"}) == hashes.row_hash(
        base, {"b": "null_replaced", "c": "c"}
    )


@pytest.mark.parametrize("zone", ZONES)
def test_a_load_in_another_session_zone_is_the_same(place, engine, zone):
    """R6, R21: The session's zone changes neither instants nor keys."""
    in_zone(place, zone)
    place.mode(engine).base("a:1").load("r1", "1.000001")
    place.base("a:2").load("r2", "2.5")

    assert place.history() == ["a 1 [1.000001,2.5) changed r2", "a 2 [2.5,-) changed r2"]


CALENDAR_ENDS = {
    "DATE": {"infinity": None, "-infinity": None, "0044-03-15": None, "0044-03-15 BC": "-43-03-15"}
    | {"0001-03-15 BC": "0000-03-15"},
    "TIMESTAMP": {"infinity": None, "-infinity": None, "0044-03-15 BC": "-43-03-15 00:00:00.000000"},
    "TIME": {"00:00:00": "00:00:00.000000", "24:00:00": "24:00:00.000000"},
}


@pytest.mark.parametrize("datatype", CALENDAR_ENDS)
def test_times_that_python_lacks_have_hashes(place, engine, datatype):
    """2.4: Infinite times, years before 1 and 24:00:00 have texts, so each begins a version."""
    columns = f"k* a:{datatype}"
    place.use(document(dataset(columns, input="stage.s", historization={"engine": engine})))
    place.stage("s", columns, [{"k": "x", "a": None}])
    place.loads("r0", 0)
    for second, (value, text) in enumerate(CALENDAR_ENDS[datatype].items(), 1):
        written = value if place.name == "postgres" else value.replace("BC", "(BC)")
        place.sql(f"UPDATE stage.s SET a = '{written}'")
        (receipt,) = place.loads(f"r{second}", second)

        assert (receipt.status, receipt.counts["changed"]) == ("success", 1)
        ((row_hash,),) = place.rows("SELECT row_hash FROM rawcore.rc_c")
        assert row_hash == hashlib.sha256((text or value).encode()).hexdigest()


def test_loads_do_not_depend_on_the_settings_of_postgresql(postgres_url, tmp_path, monkeypatch):
    """R6: Settings of the database and the environment change neither hashes nor loads."""
    place, name = Place("postgres", postgres_url, tmp_path), postgres_url.rpartition("/")[2]
    for setting in ("DateStyle = 'SQL, DMY'", "extra_float_digits = 0", "IntervalStyle = 'sql_standard'"):
        place.sql(f"ALTER DATABASE {name} SET {setting}")
    monkeypatch.setenv("PGTZ", "Asia/Kolkata")
    monkeypatch.setenv("PGDATESTYLE", "German")
    written = dataset("k* f", input="stage.s")
    written["target_columns"][1] |= {"datatype": "FLOAT", "hash_as": "DECIMAL(20,2)"}
    place.close()
    place.target = place.connected()
    place.use(document(written))
    place.stage("s", "k* f:FLOAT", [{"k": "x", "f": 123456789012345.67}])
    place.loads("r1", 1)
    place.sql("UPDATE stage.s SET f = 123456789012345.69")
    (receipt,) = place.loads("r2", 2)

    assert (receipt.status, receipt.counts["changed"]) == ("success", 1)
    assert place.history("f") == [
        "x 123456789012345.67 [1,2) changed r2",
        "x 123456789012345.69 [2,-) changed r2",
    ]
    assert place.rows("SHOW TimeZone") == [("UTC",)]
    assert place.rows("SELECT INTERVAL '36 hours'") == [(timedelta(hours=36),)]
    place.close()
