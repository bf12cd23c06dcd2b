"""Real logs compared with a trigger's history: overlapping sessions, clocks set back, writes during a
snapshot (V131)."""

from contextlib import ExitStack

import psycopg
import pytest
from debezium_engine import (
    HISTORY_OF_POSTGRESQL,
    STREAMING,
    empty_database,
    following,
    following_mariadb,
    messages_of,
)
from feed_lives import now
from mariadb_server import Session, mariadb_server
from specification.feeds.rule import Event, Feed, apply
from specification.stored import StoredVersions

from backstory.formats.envelopes.debezium import unwrap_debezium
from backstory.formats.envelopes.messages import debezium_messages
from backstory.model.versions_layout import FactKind
from backstory.strategies.copies.version_rows import micros

WITHOUT_SCHEMAS = {"key.converter.schemas.enable": "false", "value.converter.schemas.enable": "false"}
WAYS = {"as it is": {}, "without schemas": WITHOUT_SCHEMAS}

OF_MARIADB = """
CREATE USER debezium@localhost IDENTIFIED BY 'debezium';
GRANT ALL ON *.* TO debezium@localhost;
CREATE TABLE item (id int PRIMARY KEY, v varchar(20));
CREATE TABLE done (id int PRIMARY KEY);
CREATE TABLE history (number bigint AUTO_INCREMENT PRIMARY KEY, id int, v varchar(20));
CREATE TRIGGER inserted AFTER INSERT ON item FOR EACH ROW INSERT INTO history (id, v) VALUES (NEW.id, NEW.v);
CREATE TRIGGER updated AFTER UPDATE ON item FOR EACH ROW INSERT INTO history (id, v) VALUES (NEW.id, NEW.v);
CREATE TRIGGER deleted AFTER DELETE ON item FOR EACH ROW INSERT INTO history (id, v) VALUES (OLD.id, NULL);
INSERT INTO item VALUES (1, 'one'), (2, 'two'), (3, 'three'), (4, 'four'), (5, 'five');
"""
# The reader of the snapshot waits in the middle of it for a lock that a session holds.
READS_OF_MARIADB = {
    "table.include.list": "shop.item,shop.done",
    "snapshot.select.statement.overrides": "shop.item",
    "snapshot.select.statement.overrides.shop.item": "SELECT * FROM shop.item WHERE GET_LOCK('gate', 600) = 1",
}
WAITS = "SELECT 1 FROM information_schema.processlist WHERE user = 'debezium' AND info LIKE '%GET_LOCK%'"
FOLLOWS = "SELECT 1 FROM information_schema.processlist WHERE command = 'Binlog Dump'"


@pytest.mark.laws("a Debezium starts for each way")
@pytest.mark.parametrize("way", WAYS)
def test_mariadb_events_with_clocks_set_back_keep_the_order_of_a_trigger(tmp_path, way):
    """Statements claim to be from long ago or tomorrow, in overlapping transactions."""
    options = ("--log-bin=binlog", "--server-id=1", "--binlog-format=ROW", "--binlog-row-image=FULL")
    with mariadb_server(*options) as server, ExitStack() as stack:
        own, first, second, late = (stack.enter_context(Session(server)) for _ in range(4))
        own.do(OF_MARIADB.strip().removesuffix(";"))
        own.do("SELECT GET_LOCK('gate', 0)")
        (clock,) = own.do("SELECT UNIX_TIMESTAMP()")[0]
        back = {each: f"SET TIMESTAMP = {int(clock) + each}" for each in (-86_400, -3_600, -60, 30, 3_600)}
        first.do("BEGIN")  # open while the snapshot is read
        first.do(back[-86_400])
        first.do("UPDATE item SET v = 'uno' WHERE id = 1")
        properties = READS_OF_MARIADB | WAYS[way]
        recorder = stack.enter_context(following_mariadb(server.port, tmp_path, **properties))
        recorder.wait(lambda: own.do(WAITS))
        second.do(back[-3_600])  # during the read of the snapshot
        second.do("UPDATE item SET v = 'due' WHERE id = 2")
        first.do("COMMIT")
        late.do("DELETE FROM item WHERE id = 5")
        late.do("INSERT INTO item VALUES (6, 'six')")
        own.do("SELECT RELEASE_LOCK('gate')")
        recorder.wait(lambda: own.do(FOLLOWS))
        second.do(back[3_600])
        second.do("BEGIN")
        second.do("UPDATE item SET v = 'tre' WHERE id = 3")
        first.do("BEGIN")
        first.do("DELETE FROM item WHERE id = 4")
        first.do("INSERT INTO item VALUES (4, 'vier')")
        late.do("BEGIN")
        late.do(back[-60])
        late.do("UPDATE item SET v = 'eins' WHERE id = 1")
        second.do("UPDATE item SET v = 'zwei' WHERE id = 2")
        late.do("INSERT INTO item VALUES (5, 'again')")
        late.do("UPDATE item SET v = 'un' WHERE id = 1")
        second.do("COMMIT")
        late.do("UPDATE item SET v = 'drei' WHERE id = 3")  # its clock is behind the replaced row's time
        late.do("COMMIT")
        first.do("COMMIT")
        own.do("FLUSH BINARY LOGS")
        own.do(back[30])
        own.do("DELETE FROM item WHERE id = 3")
        own.do(back[-86_400])
        own.do("UPDATE item SET v = CONCAT(v, '!')")
        own.do("INSERT INTO done VALUES (1)")
        recorder.wait_for_table("done")
        messages = messages_of(recorder.messages, "item")
        history = own.do("SELECT id, v FROM history ORDER BY id, number")
        left = own.do("SELECT id, v FROM item ORDER BY id")
    true = [(int(id_), None if v == "NULL" else v) for id_, v in history]
    hold_to_history(messages, true, [(int(id_), v) for id_, v in left])


READS_OF_POSTGRESQL = {
    "table.include.list": "public.item,public.done",
    "snapshot.select.statement.overrides": "public.item",
    "snapshot.select.statement.overrides.public.item": "SELECT * FROM public.item WHERE pg_advisory_xact_lock_shared(7)::text = ''",
}
WAITS_FOR_GATE = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.mark.laws("a Debezium starts for each way")
@pytest.mark.parametrize("way", WAYS)
def test_postgresql_writes_during_a_snapshot_keep_the_order_of_a_trigger(postgresql_url, tmp_path, way):
    """Reads have later times than changes that they do not show."""
    with empty_database(postgresql_url) as url, ExitStack() as stack:
        own, first, second = (stack.enter_context(psycopg.connect(url, autocommit=True)) for _ in range(3))
        own.execute(HISTORY_OF_POSTGRESQL)
        own.execute("SELECT pg_advisory_lock(7)")
        recorder = stack.enter_context(following(url, tmp_path, **READS_OF_POSTGRESQL, **WAYS[way]))
        recorder.wait_for(own, WAITS_FOR_GATE)
        first.execute("BEGIN")
        first.execute("UPDATE item SET v = 'uno' WHERE id = 1")
        second.execute("UPDATE item SET v = 'due' WHERE id = 2")
        second.execute("DELETE FROM item WHERE id = 3")
        second.execute("INSERT INTO item VALUES (5, 'five')")
        first.execute("DELETE FROM item WHERE id = 4")
        first.execute("COMMIT")
        second.execute("INSERT INTO item VALUES (4, 'again')")
        second.execute("UPDATE item SET v = 'eins' WHERE id = 1")
        own.execute("SELECT pg_advisory_unlock(7)")
        recorder.wait_for(own, STREAMING)
        own.execute("UPDATE item SET v = 'un' WHERE id = 1")
        own.execute("INSERT INTO done VALUES (1)")
        recorder.wait_for_table("done")
        messages = messages_of(recorder.messages, "item")
        true = own.execute("SELECT id, v FROM history ORDER BY id, number").fetchall()
        left = own.execute("SELECT id, v FROM item ORDER BY id").fetchall()
    hold_to_history(messages, true, left)


def hold_to_history(messages, true, left):
    """Check that the messages in order are the true changes, and that their versions end with the final rows.

    The first change in the trigger's history may be a read, or missing: a row written during a snapshot is
    read, followed, or both. If instants are equal, only the later change leaves a version.
    """
    events = unwrap_debezium(debezium_messages(*messages), ["id"])
    changes = [
        Event(
            row["id"],
            int(at),
            FactKind.DELETE if kind == "delete" else FactKind.UPSERT,
            {} if kind == "delete" else {"v": row["v"]},
            None if kind == "delete" else ("v",),
            tuple(place.values()),
            logged=True,
        )
        for row, at, kind, place in zip(
            events.rows.to_pylist(),
            micros(events.instants),
            events.kinds.to_pylist(),
            events.sequence.to_pylist(),
            strict=True,
        )
    ]
    in_order = sorted(changes, key=lambda each: (each.key, each.sequence))
    assert [(each.key, each.values.get("v")) for each in in_order] == true
    assert [each.at for each in in_order] != sorted(each.at for each in in_order)
    tables = []
    for deliveries in ([changes], [[each] for each in reversed(changes)], [changes[::2], changes[1::2]]):
        table = StoredVersions(("v",), settled=())
        for number, each in enumerate(deliveries):
            table = apply(table, Feed(tuple(each)), number + 1).table
        tables.append(now(table))
    assert tables[0] == tables[1] == tables[2]
    assert sorted((row.key, row.values["v"]) for row in table.versions if row.end is None) == left
    for key in {id_ for id_, _ in true}:
        values = [v for id_, v in true if id_ == key]
        life = sorted(table.life(key), key=lambda row: row.start)
        rest = iter(values)
        assert all(row.values["v"] in rest for row in life)
