"""R56: The hash profile changes by version or by rehash, in complete loads."""

import random

import pytest
from historizing import dataset, document, versions

V1, V2 = "elevata_v1", "strict_v2"
PROFILES = [(V1, V2), (V2, V1)]
OLD = {"a": "1", "b": "1", "c": "1"}


@pytest.fixture(params=PROFILES, ids=lambda pair: f"to {pair[1]}")
def profiles(request):
    """The profiles before and after."""
    return request.param


def use(place, profile, columns="k* a n:INTEGER", engine="auto"):
    """Use the model with a profile. Keys are equal, because they contain no escaped character."""
    place.use(
        document(dataset(columns, input="stage.csv", historization={"engine": engine}), hash_profile=profile)
    )
    return place


def load(place, run, rows, header="k,a", **options):
    """Load a stage with these values."""
    lines = [f"{key},{value}" for key, value in rows.items()]
    (place.folder / "stage.csv").write_text("\n".join([header, *lines]) + "\n")
    (receipt,) = place.loads(f"r{run}", run, **options)
    return receipt


@pytest.fixture
def hashed(place, engine, profiles):
    """Three records hashed by the first profile; the model then has the second one."""
    use(place, profiles[0], "k* a", engine)
    assert load(place, 1, OLD).status == "success"
    return use(place, profiles[1], "k* a", engine)


def test_a_changed_hash_definition_needs_a_decision(hashed):
    """R56: A load whose hash definition differs from the stored one is rejected, and writes nothing."""
    before = hashed.dump()

    receipt = load(hashed, 2, OLD)

    assert (receipt.status, receipt.error["code"]) == ("rejected", "HASH_DEFINITION_CHANGED")
    assert hashed.dump() == before


@pytest.mark.parametrize(("decision", "changed"), [("rehash", 0), ("version", 3)])
def test_a_hash_change_in_a_delta_applies_to_all_records(
    place, engine, profiles, decision, changed
):  # R56, section 7.6
    """Base rows that are missing from a delta are also hashed again, once."""

    def use(profile):
        rules = {"engine": engine, "snapshot": "partial"}
        delta = {"incremental_strategy": "merge", "incremental_source": "crm"}
        written = dataset(input="stage.csv", historization=rules, **delta)
        place.use(document(written, hash_profile=profile, source_datasets=[{"name": "crm"}]))

    use(profiles[0])
    load(place, 1, OLD)
    use(profiles[1])
    assert load(place, 2, {"a": "1"}, hash_change=decision).counts["changed"] == changed
    assert load(place, 3, OLD).counts["changed"] == 0
    assert load(place, 4, {"b": "2"}).counts["changed"] == 1


def test_the_version_decision_opens_a_version_of_every_record(hashed):
    """R56: With `version`, every record gets one changed version, once."""
    receipt = load(hashed, 2, OLD, hash_change="version")

    assert receipt.counts["changed"] == 3
    assert load(hashed, 3, OLD).status == "unchanged"


def test_rehash_versions_only_changed_records(hashed):
    """R56: With `rehash`, only records with another attribute get a version."""
    receipt = load(hashed, 2, {"a": "1", "b": "2", "d": "1"}, hash_change="rehash")

    assert {name: count for name, count in receipt.counts.items() if count} == {
        "new": 1,
        "changed": 1,
        "deleted": 1,
        "unchanged": 1,
    }
    assert hashed.history() == versions("""
        a 1 [1,-) new r1
        b 1 [1,2) changed r2
        b 2 [2,-) changed r2
        c 1 [1,2) deleted r2
        d 1 [2,-) new r2
    """)
    assert load(hashed, 3, {"a": "1", "b": "2", "d": "1"}).status == "unchanged"


def test_rehash_writes_only_hashes_of_open_versions(hashed):
    """R56: After a rehash, open versions have the new hash of their own values. Closed ones keep theirs."""
    use(hashed, hashed.schema.hash_profile, "k* a")
    first = (
        "SELECT k, row_hash FROM rawcore.rc_c_hist WHERE version_started_at = TIMESTAMP '2025-01-02 00:00:01'"
    )
    if hashed.name == "postgres":
        first = first.replace("TIMESTAMP '2025-01-02 00:00:01'", "TIMESTAMPTZ '2025-01-02 00:00:01+00'")
    load(hashed, 2, {"a": "1", "b": "1"}, hash_change="rehash")
    after = dict(hashed.rows(first))

    for key in "ab":
        assert after[key] == hashed.hashes.row_hash(hashed.dataset, {"k": key, "a": "1"})
    load(hashed, 3, {"a": "2"})
    assert dict(hashed.rows(first)) == after


def test_a_failed_load_rolls_back_its_rehash(hashed):
    """R56: A rehash is part of its load, so a refused load leaves all hashes unchanged."""
    before = hashed.dump()

    receipt = load(hashed, 2, {}, hash_change="rehash")

    assert (receipt.status, receipt.error["code"]) == ("rejected", "EMPTY_SNAPSHOT")
    assert hashed.dump() == before
    assert load(hashed, 3, OLD, hash_change="rehash").status in {"success", "unchanged"}
    assert len(hashed.history()) == 3


@pytest.mark.parametrize("place_name", ["duckdb"])
def test_random_values_are_never_versioned_by_a_rehash(place, profiles, place_name):
    """R56: Values with separators, NULLs and empty texts have the same hash as their stored copies."""
    chance = random.Random(3)
    words = ["", '"a|b"', "^", "^0", "~", "null_replaced", '""', "ä", "-1"]
    rows = {
        f"k{number}": f"{chance.choice(words)},{chance.choice(['', '0', '-7'])},{chance.choice(['', '1.50', '-0.00'])},"
        f"{chance.choice(['', 'true', 'false'])},{chance.choice(['', '2024-02-29'])}"
        for number in range(60)
    }
    columns, header = "k* a n:INTEGER d:DECIMAL(6,2) f:BOOLEAN day:DATE", "k,a,n,d,f,day"
    use(place, profiles[0], columns)
    load(place, 1, rows, header)
    use(place, profiles[1], columns)

    receipt = load(place, 2, rows, header, hash_change="rehash")

    assert receipt.error is None
    assert receipt.counts["unchanged"] == 60
    assert len(place.history()) == 60
