"""R45: A stage table's columns are matched in any case, and read under their own names."""

import pytest
from historizing import dataset, document

STATES = "SELECT k, a FROM rawcore.rc_c ORDER BY k"


def load(place, number=1):
    (receipt,) = place.loads(f"r{number}", number)
    return receipt


def stage(place, columns, *rows):
    place.use(document(dataset(input="stage.s")))
    place.sql(place.dialect.render_create_schema_if_not_exists("stage"))
    place.sql(f"CREATE TABLE stage.s ({columns})")
    for row in rows:
        place.sql(f"INSERT INTO stage.s VALUES ({row})")


@pytest.mark.parametrize(
    "written", ["k varchar, a varchar", '"K" varchar, "A" varchar', 'K varchar, "a" varchar']
)
def test_a_stage_column_matches_in_any_case(place, written):
    """R45: Upper-case names of a stage, folded or not, match the model's."""
    stage(place, written, "'x', '1'")

    assert load(place).status == "success"
    assert place.rows(STATES) == [("x", "1")]


def test_load_columns_of_the_stage_match_in_any_case(place):
    """R45, H9: A stage's own run and time match in upper case too."""
    stage(
        place,
        'k varchar, a varchar, "LOAD_RUN_ID" varchar, "Loaded_At" timestamp with time zone',
        "'x', '1', 'theirs', '2024-01-01 00:00:00+00'",
    )

    assert load(place).status == "success"
    assert place.rows("SELECT load_run_id FROM rawcore.rc_c") == [("theirs",)]


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    ("names", "code"), [('"ID", id', None), ('id, "ID"', None), ('"ID", "Id"', "repeated-column")]
)
def test_the_exact_spelling_wins_among_columns_that_differ_by_case(place, names, code):
    """R45: The column with the model's spelling is used. If there is none, the stage is refused."""
    first, second = (f"{name} varchar" for name in names.split(", "))
    stage(place, f"{first}, {second}, a varchar", "'x', 'y', '1'")
    written = dataset(input="stage.s")
    written["target_columns"][0]["input"] = "id"
    place.use(document(written))

    receipt = load(place)

    assert (receipt.error and receipt.error.code) == code
    assert code or place.rows(STATES) == [("y" if names == '"ID", id' else "x", "1")]


@pytest.mark.parametrize("lacking", ["load_run_id", "loaded_at"])
def test_rows_without_their_run_or_time(place, lacking):
    """H9: Rows with NULL as run or time are refused with their keys, and nothing is written."""
    values = {"load_run_id": "'theirs'", "loaded_at": "'2024-01-01 00:00:00+00'"}
    listed = ", ".join((values | {lacking: "NULL"}).values())
    columns = "k varchar, a varchar, load_run_id varchar, loaded_at timestamp with time zone"
    stage(place, columns, f"'x', '1', {', '.join(values.values())}", f"'y', '1', {listed}")

    receipt = load(place)

    assert (receipt.status, receipt.error["code"], receipt.error["keys"]) == ("rejected", "NULL_VALUE", ["y"])
    assert not place.has("rawcore", "rc_c")
