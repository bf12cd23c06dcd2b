"""A table whose source returns in another shape restarts if its entry allows it, and its former history is
kept."""

import itertools
import json
import re

import pytest
from depth import deep
from teams import rows

from backstory.engine.deliver import ARCHIVED
from backstory.projects import deliveries
from backstory.projects.deliveries import RESTARTED
from backstory.projects.log import LOG, rows_of_log
from backstory.stores.iceberg.store import load, tables

# A copy, the next copy with another shape, the key of the entry, and its key from then on.
SHAPES = {
    "another key": ("id,name\n1,Ann\n", "nr,name\n7,Ann\n", "id", "nr"),
    "the key's columns are gone": ("id,name\n1,Ann\n", "name\nAnn\n", "id", "name"),
    "a type that does not fit": ("id,name\n1,1\n", "id,name\n1,Ann\n", "id", "id"),
    "another case": ("id,name\n1,Ann\n", "id,NAME\n1,Ann\n", "id", "id"),
    "a key of more columns": ("id,name\n1,Ann\n", "id,name\n1,Ann\n1,Bob\n", "id", "[id, name]"),
}


class BrokenOff(BaseException):
    """An exception that ends a run like a kill."""


def declare(team, key="id", source="a.csv", more="restart: true"):
    team.declare(f"tables: {{s.a: {{source: '{source}', key: {key}, {more}}}}}")


def names(team):
    """The tables of the team, without the times of archives."""
    listed = (each.name for each in tables(team.warehouse.store, team.schema))
    return sorted(re.sub(r"\d{8}_\d{6}(_\d+)?", "T", name) for name in listed)


def declare_each(team, keys, more=()):
    """Declare a table for each key: a, b and so on, each with its file and its further options."""
    entries = itertools.zip_longest("abcde"[: len(keys)], keys, more, fillvalue="")
    declarations = (
        f"s.{name}: {{source: {name}.csv, key: {key}, restart: true{more}}}" for name, key, more in entries
    )
    team.declare(f"tables: {{{', '.join(declarations)}}}")


def test_a_changed_shape_archives_the_history_and_begins_a_new_history(team):
    shapes = dict(zip("abcde", SHAPES.values(), strict=True))
    for name, (first, *_) in shapes.items():
        team.write(f"{name}.csv", first)
    declare_each(team, [key for _, _, key, _ in shapes.values()])
    assert [each.archives for each in team.run().values()] == [[]] * len(shapes)
    before = {name: team.warehouse.table(f"{team.schema}.{name}").current().collect() for name in shapes}
    for name, (_, second, *_) in shapes.items():
        team.write(f"{name}.csv", second)
    declare_each(team, [key for *_, key in shapes.values()])
    plans = team.run(dry_run=True)
    assert names(team) == [*shapes]
    receipts = team.run()
    logged = {
        each["name"]: json.loads(each["archives"])
        for each in rows_of_log(team.warehouse.store)
        if each["run_id"] == receipts["a"].run_id and each["archives"]
    }
    for name, (_, second, *_) in shapes.items():
        plan, receipt = plans[name], receipts[name]
        assert (plan.status, len(plan.archives)) == ("changed", 1)
        (archive,) = receipt.archives
        assert re.fullmatch(rf"{team.schema}.{name}_until_\d{{8}}_\d{{6}}", archive)
        assert receipt.status == "changed"
        assert receipt.schema_changes[0].startswith("new history: ")
        assert receipt.counts["new"] == plan.counts["new"] == len(second.splitlines()) - 1
        table = team.warehouse.table(archive)
        assert table.current().collect() == before[name]
        assert {each["status"] for each in table.check()} == {"ok"}
        assert logged[f"{team.schema}.{name}"] == [archive]
    # The key stays in the file, and nothing restarts again.
    again = team.run().values()
    assert [(each.status, each.archives) for each in again] == [("unchanged", [])] * len(shapes)
    assert names(team) == sorted(listed for name in shapes for listed in (name, f"{name}_until_T"))


def test_the_remedy_names_the_restart(team):
    team.write("a.csv", "id,name\n1,1\n")
    declare(team, more="tags: x")
    team.run()
    team.write("a.csv", rows("Ann"))
    refused = team.run()["a"]
    assert (refused.error.code, names(team)) == ("type-changed", ["a"])
    assert refused.error.remedy.endswith(
        "Or declare `restart: true` to archive the history and begin a new one."
    )


# The second copy of three records, further options of its entry, and the code of the refusal.
GUARDS = (
    ("id,name\n1,Ann\n", "", "mass-delete"),
    ("id,name\n", "", "empty-snapshot"),
    ("id,name\n1,Ann\n1,Bob\n", "", "duplicate-key"),
    ("id\n1\n2\n3\n", ", on_schema_change: refuse", "columns-changed"),
    ("id,name\n1,Ann\n2,Bob\n3,Cid\n", ", ignore: name", "settings-changed"),
)


def test_a_copy_refused_by_a_guard_does_not_restart(team):
    listed, keys = "abcde", ["id"] * len(GUARDS)
    for name in listed:
        team.write(f"{name}.csv", rows("Ann", "Bob", "Cid"))
    declare_each(team, keys)
    team.run()
    for name, (second, *_) in zip(listed, GUARDS, strict=True):
        team.write(f"{name}.csv", second)
    declare_each(team, keys, [more for _, more, _ in GUARDS])
    refused = team.run()
    assert [each.error.code for each in refused.values()] == [code for *_, code in GUARDS]
    assert ([each.archives for each in refused.values()], names(team)) == ([[]] * len(GUARDS), [*listed])
    assert not [each for each in refused.values() if "restart" in each.error.remedy]


def test_a_copy_without_the_key_column_archives_nothing(team):
    team.write("a.csv", rows("Ann"))
    declare(team)
    team.run()
    team.write("a.csv", "nr,name\n1,Ann\n")  # the copy lacks the entry's key
    refused = team.run()["a"]
    assert (refused.error.code, names(team)) == ("missing-column", ["a"])
    assert "its first load is refused: Key column id is missing" in refused.error.remedy
    assert "_until_" not in str(refused.error)


def test_a_late_file_of_a_former_shape_does_not_restart(team):
    team.write("a-2024-01-01.csv", "id,name\n1,1\n")
    team.write("a-2024-01-05.csv", "id,name\n1,Ann\n")
    declare(team, source="a-{at:%Y-%m-%d}.csv")
    assert len(team.run()["a"].archives) == 1
    team.write("a-2024-01-03.csv", "nr,name\n1,2\n")
    declare(team, source="a-{at:%Y-%m-%d}.csv", key="nr")
    refused = team.run()["a"]
    assert (refused.error.code, refused.archives, names(team)) == ("key-changed", [], ["a", "a_until_T"])


def test_files_of_an_archived_history_are_not_delivered_again(team):
    """Each change of shape among several files restarts, in one run or file by file."""
    for number, text in enumerate(("id,name\n1,1\n", rows("Ann"), "id,name,b\n1,Ann,x\n", "id,b\n1,2\n"), 1):
        team.write(f"a-2024-01-0{number}.csv", text)
    declare(team, source="a-{at:%Y-%m-%d}.csv")
    team.run()
    team.write("a-2024-01-05.csv", "id,name,b\n1,Ann,2024-01-01\n")
    receipt = team.run()["a"]
    assert (receipt.files, receipt.error) == (["a-2024-01-05.csv"], None)
    assert team.run()["a"].files == []
    declare(team, source="a-{at:%Y-%m-%d}.csv", more="tags: x")
    assert team.run()["a"].files == []
    team.warehouse.spark.sql(f"DROP TABLE {team.warehouse.store.sql_name(LOG)}")
    declare(team, source="a-{at:%Y-%m-%d}.csv")
    assert team.run()["a"].files == []


ONE, DATED = "a.csv", "a-{at:%Y-%m-%d}.csv"
KILLS = [(DATED, "planned"), (ONE, "archived"), (DATED, "renamed"), (ONE, "loaded")]
# Before a release, each moment also runs with the other kind of files.
KILLS += [({ONE: DATED, DATED: ONE}[source], moment) for source, moment in KILLS] if deep(1, 0) else []


@pytest.mark.parametrize(("source", "moment"), KILLS)
def test_a_killed_restart_is_completed_by_the_next_run(team, monkeypatch, source, moment):
    """At each of its commits, nothing is lost, and nothing is archived or delivered twice."""
    first, second = (ONE, ONE) if source == ONE else ("a-2024-01-01.csv", "a-2024-01-02.csv")
    team.write(first, "id,name\n1,1\n2,2\n")
    declare(team, source=source)
    team.run()
    team.write(second, rows("Ann", "Bob"))
    place = table_of(team)

    def killed(*arguments):
        if moment == "archived":
            monkeypatch.setattr("backstory.upkeep.ending.deliver_change", broken_after_one(original_deliver))
        if moment == "planned":
            raise BrokenOff
        archive_history(*arguments)
        if moment == "renamed":
            raise BrokenOff

    from backstory.upkeep import ending

    archive_history, original_deliver = deliveries.archive_history, ending.deliver_change
    monkeypatch.setattr(deliveries, "archive_history", killed)
    if moment == "loaded":
        monkeypatch.setattr("backstory.projects.running.append_run", broken)
    with pytest.raises(BrokenOff):
        team.run()
    monkeypatch.undo()
    stored = load(team.warehouse.store, place)
    assert {
        "planned": stored is not None and ARCHIVED not in stored.properties,
        "archived": stored is not None and {ARCHIVED, RESTARTED} <= stored.properties.keys(),
        "renamed": stored is None,
        "loaded": stored is not None and ARCHIVED not in stored.properties,
    }[moment]
    assert len(team.run(dry_run=True)) == 1
    receipt = team.run(failed=True).get("a")
    assert (receipt is None) <= (moment == "loaded")
    assert receipt is None or receipt.error is None
    assert names(team) == ["a", "a_until_T"]
    assert team.names_at("a") == ["Ann", "Bob"]
    assert team.commits("a") == 1
    (archive,) = [each for each in tables(team.warehouse.store, team.schema) if each.name != "a"]
    if receipt is not None:
        assert receipt.archives == ([] if moment == "loaded" else [str(archive)])
    assert sorted(each["name"] for each in team.warehouse.table(str(archive)).current().collect()) == [1, 2]
    last = team.run()["a"]
    assert (last.status, list(last.files), last.archives) == ("unchanged", [], [])


def test_a_run_lists_the_schema_only_if_a_restart_may_be_incomplete(team, monkeypatch):
    listings = []

    def listing(store, schema):
        listings.append(schema)
        return tables(store, schema)

    monkeypatch.setattr("backstory.projects.running.tables", listing)
    days = "source: 's/{at:%Y-%m-%d}.csv', key: id, restart: true"
    team.declare(
        "tables:\n" + "".join(f"  s.{name}: {{{days.replace('s/', name + '-')}}}\n" for name in "ab")
    )
    for day, text in enumerate(("id,name\n1,1\n", "id,name\n1,2\n", rows("Ann"), rows("Bob")), 1):
        for name in "ab":
            team.write(f"{name}-2024-01-0{day}.csv", text)
        listings.clear()
        receipts = team.run()
        assert [len(each.archives) for each in receipts.values()] == [day == 3] * 2
        assert listings == [team.schema] * (day == 1)
    assert team.status() == {"a": "unchanged", "b": "unchanged"}


def table_of(team):
    return team.warehouse.table(f"{team.schema}.a").name


def broken(*_arguments, **_options):
    raise BrokenOff


def broken_after_one(deliver):
    """A deliver function that commits once and then ends like a kill."""
    calls = []

    def act(*arguments):
        if calls:
            raise BrokenOff
        calls.append(1)
        return deliver(*arguments)

    return act
