"""Two servers on one warehouse: decision F3, sections 7.6 and 7.7."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from depth import deep
from destination import HISTORY, LIVE, definition
from serving import Ground, Request, alter, create, described, migrate
from tables_as_text import cell, instant

from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk

pytestmark = pytest.mark.process

EACH, TIMES = deep(6, 2), deep(4, 2)
SYNCED = {"_fivetran_synced": instant("T1")}


@pytest.fixture(scope="module")
def ground(tmp_path_factory) -> Ground:
    return Ground.at(tmp_path_factory.mktemp("two") / "ground")


@pytest.fixture(scope="module")
def servers(ground) -> Iterator[list[Any]]:
    """Connections to two servers."""
    with ground.server() as one, ground.server() as other:
        yield [one.stub, other.stub]


def spread(stubs: Sequence[Any], act: Callable[[int, Any], Any], number: int = 2 * EACH) -> list[Any]:
    """The result of the function for each number, in turns on the servers, in parallel."""
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(lambda i: act(i, stubs[i % len(stubs)]), range(number)))


def rows(first: int, count: int = 5) -> list[dict]:
    return [{"id": i, "v": f"v{i}", "n": i} | SYNCED for i in range(first, first + count)]


def wide(number: int) -> str:
    """A live table with a column for each writer."""
    return " ".join(["id:LONG* v n:LONG synced", *(f"by{i}:LONG" for i in range(number))])


def test_concurrent_batches_of_two_servers_lose_and_repeat_no_rows(ground, servers):
    """F3, 7.7: With concurrent batches from both servers, every row exists once, with every change."""
    table = definition("both", wide(2 * EACH))
    create("s", table).done_by(servers[0])
    ground.batch("s", table, replace=[{"id": -1} | SYNCED]).done_by(servers[0])

    def write(number: int, stub: Any) -> None:
        changes = [{"id": -1, f"by{number}": number}]
        ground.batch("s", table, replace=rows(10 * number), update=changes).done_by(stub)

    spread(servers, write)
    stored_rows = ground.rows("s", "both")
    expected = sorted([-1, *(10 * i + j for i in range(2 * EACH) for j in range(5))])
    assert expected == sorted(row["id"] for row in stored_rows)
    shared = next(row for row in stored_rows if row["id"] == -1)
    assert {f"by{i}": i for i in range(2 * EACH)} == {c: v for c, v in shared.items() if c.startswith("by")}
    assert ground.snapshots("s", "both") == 1 + 2 * EACH
    assert ground.orphans("s", "both") == set()


def test_two_servers_writing_a_history_store_every_version_once(ground, servers):
    """F3, 5.5: If both servers write versions of one record, all are stored, in one commit per batch."""
    table = definition("versions", HISTORY)
    create("s", table).done_by(servers[0])

    def version(key: int, number: int) -> dict:
        start = instant("T1") + timedelta(seconds=number)
        times = {"_fivetran_start": start, "_fivetran_end": cell("TMAX"), "_fivetran_active": True}
        return {"id": key, "v": f"{number}", "n": number} | SYNCED | times

    def write(number: int, stub: Any) -> None:
        own = [version(100 + number, n) for n in range(3)]
        own[0]["_fivetran_active"] = own[1]["_fivetran_active"] = False
        for place in (0, 1):
            own[place]["_fivetran_end"] = own[place + 1]["_fivetran_start"] - timedelta(milliseconds=1)
        shared = version(1, number)
        batch = ground.batch("s", table, replace=[*own, shared])
        batch.done_by(stub)

    spread(servers, write)
    versions = ground.rows("s", "versions")
    expected = [(100 + i, n) for i in range(2 * EACH) for n in range(3)] + [(1, i) for i in range(2 * EACH)]
    assert sorted(expected) == sorted((row["id"], row["n"]) for row in versions)
    assert ground.snapshots("s", "versions") == 2 * EACH


def test_a_request_to_both_servers_is_executed_once(ground, servers):
    """F14, 7.7: The same batch on both servers at the same time is one commit."""
    table = definition("once", LIVE)
    create("s", table).done_by(servers[0])
    for number in range(TIMES):
        batch = ground.batch("s", table, replace=rows(10 * number), delete=[{"id": 10 * number - 1}])
        spread(servers, lambda _, stub, batch=batch: batch.done_by(stub), 4)
    assert sorted(row["id"] for row in ground.rows("s", "once")) == [
        10 * i + j for i in range(TIMES) for j in range(5)
    ]
    assert ground.snapshots("s", "once") == TIMES
    assert ground.orphans("s", "once") == set()


def test_concurrent_creates_of_a_table_succeed_only_once(ground, servers):
    """2.5, F17: One of many creates succeeds, on either server. The others are tasks."""
    for number in range(TIMES):
        table = definition("same", LIVE)
        request = create(f"new{number}", table)
        outcomes = spread(servers, lambda _, stub, request=request: request.outcome(stub), 6)
        assert sorted(member for member, _ in outcomes) == ["success", *["task"] * 5], outcomes
        ground.batch(f"new{number}", table, replace=rows(0)).done_by(servers[number % 2])
        assert len(ground.rows(f"new{number}", "same")) == 5


def test_batches_to_different_tables_do_not_conflict(ground, servers):
    """15: Both servers create and write different tables of a new schema at the same time."""

    def life(number: int, stub: Any) -> None:
        table = definition(f"t{number}", LIVE)
        create("many", table).done_by(stub)
        for batch in (0, 1):
            ground.batch("many", table, replace=rows(10 * batch), delete=[{"id": 0}]).done_by(stub)

    spread(servers, life, 2 * TIMES)
    for number in range(2 * TIMES):
        expected = [1, 2, 3, 4, 10, 11, 12, 13, 14]
        assert sorted(row["id"] for row in ground.rows("many", f"t{number}")) == expected


# The repeated changes of one server to a table, while the other server receives batches.
ALTERED = {
    "columns": [
        "id:LONG* v n:LONG synced a",
        "id:LONG* v n:LONG synced a b:JSON",
        "id:LONG* v n:LONG synced",
    ],
    "types": [
        "id:LONG* v n:DOUBLE synced",
        "id:LONG* v n:STRING synced",
        "id:LONG* v:BINARY n:STRING synced",
    ],
    "key-types": ["id:STRING* v n:LONG synced", "id:LONG* v n:LONG synced", "id:STRING* v n:LONG synced"],
    "keys": ["id:LONG* v n:LONG* synced", "id:LONG* v* n:LONG synced", "id:LONG* v n:LONG synced"],
}


@pytest.mark.parametrize("kind", list(ALTERED)[deep(0, 2) :])
def test_batches_during_alterations_lose_no_rows(ground, servers, kind):
    """7.6, 2.6: While one server alters a table, the other writes to it. All rows of successful batches and
    all alters are kept. (A batch with an old key is refused.)"""
    name = f"altered-{kind}"
    table = definition(name, "id:LONG* v n:LONG synced")
    create("s", table).done_by(servers[0])
    ground.batch("s", table, replace=rows(-500, 500)).done_by(servers[0])
    shapes = ALTERED[kind]

    def change() -> None:
        for shape in shapes:
            alter("s", definition(name, shape), drop_columns=True).done_by(servers[1])

    def write(number: int) -> str:
        batch = ground.batch("s", table, replace=[{"id": number, "v": "v", "n": 7} | SYNCED])
        return batch.settled(servers[0])[0]

    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change)
        answers = [write(number) for number in range(2 * EACH)]
        changing.result()
    written = [number for number, answer in enumerate(answers) if answer == "success"]
    assert set(answers) <= {"success", "task"}
    assert kind == "keys" or len(written) == 2 * EACH, answers
    stored_rows = ground.rows("s", name)
    assert [*range(-500, 0), *written] == sorted(int(row["id"]) for row in stored_rows)
    assert {str(row["n"]) for row in stored_rows if int(row["id"]) >= 0} <= {"7", "7.0"}
    expected = described(servers[1], "s", name)
    alter("s", definition(name, shapes[-1]), drop_columns=True).done_by(servers[0])
    assert expected == described(servers[0], "s", name)
    assert list(expected) == [c.name for c in definition(name, shapes[-1]).columns]


def test_keys_stay_unique_if_an_alter_reduces_the_key_during_a_batch(ground, servers):
    """2.6, 5.5: If an alter reduces the key while a batch would repeat it, one of them is refused, and keys
    stay unique."""
    for number in range(TIMES):
        name = f"shrinking{number}"
        table = definition(name, "a:LONG* b:LONG* synced")
        create("s", table).done_by(servers[0])
        ground.batch("s", table, replace=[{"a": a, "b": 1} | SYNCED for a in range(3000)]).done_by(servers[0])
        smaller = alter("s", definition(name, "a:LONG* b:LONG synced"))
        twin = ground.batch("s", table, replace=[{"a": 5, "b": 2} | SYNCED])
        requests: list[Request] = [smaller, twin]
        outcomes = spread(servers, lambda i, stub, requests=requests: requests[i].outcome(stub), 2)
        assert sum(member == "success" for member, _ in outcomes) == 1, outcomes
        key = [
            column
            for column, type_text in described(servers[0], "s", name).items()
            if type_text.endswith("*")
        ]
        keys = [tuple(row[column] for column in key) for row in ground.rows("s", name)]
        assert len(keys) == len(set(keys)), key


@pytest.mark.parametrize("kind", ["value", "history"])
def test_batches_during_migrations_lose_no_rows(ground, servers, kind):
    """7.6, 6.1: While one server migrates a table, the other writes to it, and every row is kept."""
    name = f"migrated-{kind}"
    history = kind == "history"
    table = definition(name, HISTORY if history else LIVE)
    create("s", table).done_by(servers[0])

    def versions(first: int, count: int) -> list[dict]:
        times = {"_fivetran_start": instant("T1"), "_fivetran_end": cell("TMAX"), "_fivetran_active": True}
        return [row | (times if history else {}) for row in rows(first, count)]

    ground.batch("s", table, replace=versions(-500, 500)).done_by(servers[0])

    def operation(number: int) -> Request:
        if not history:
            change = sdk.UpdateColumnValueOperation(column="v", value=f"set{number}")
            return migrate("s", name, update_column_value=change)
        at = (instant("T10") + timedelta(seconds=number)).strftime("%Y-%m-%dT%H:%M:%SZ")
        change = sdk.AddColumnInHistoryMode(
            column=f"c{number}", column_type="LONG", default_value="1", operation_timestamp=at
        )
        return migrate("s", name, add=sdk.AddOperation(add_column_in_history_mode=change))

    def write(number: int) -> None:
        ground.batch("s", table, replace=versions(number, 1)).done_by(servers[0])

    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(lambda: [operation(number).done_by(servers[1]) for number in range(TIMES)])
        for number in range(2 * EACH):
            write(number)
        changing.result()
    stored_rows = ground.rows("s", name)
    assert set(range(-500, 2 * EACH)) == {row["id"] for row in stored_rows}
    current = [row["id"] for row in stored_rows if not history or row["_fivetran_active"]]
    assert list(range(-500, 2 * EACH)) == sorted(current)
    if not history:
        assert {row["v"] for row in stored_rows if row["id"] < 0} == {f"set{TIMES - 1}"}
