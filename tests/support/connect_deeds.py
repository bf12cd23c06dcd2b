"""The actions of a process in a session of Spark Connect: `connect_deeds.py ADDRESS CATALOG [DEED ...]`.

Without a deed, the process reads deeds from its input, one JSON array for each line. For each it writes a
line: `null`, or the failure. A process has sessions of only one kind. After a session of Spark Connect,
pyspark's functions are those of Connect.
"""

import json
import os
import subprocess
import sys
import traceback
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

sys.path.append(str(Path(__file__).parents[1] / "doors" / "native"))

from datasets import Dataset, counts
from depth import deep
from destination import HISTORY, LIVE, VERSIONS, Place, column_types, done, gives, serving
from small_model import FIRST as LOADED
from small_model import MODEL
from small_model import SECOND as LOADED_NEXT
from specification.change_feed import Changed, changes_of_commits, net
from specification.copies import Copy, take
from specification.stored import StoredVersions
from tables_as_text import instant
from test_snapshot import Native, by_rule, randomly

import backstory
from backstory.doors.historize.spark_runs import LOG
from backstory.engine.staging import type_with_void, with_void_columns
from backstory.errors import Refused, UsageError
from backstory.model.change import DOOR
from backstory.model.table import TableName
from backstory.model.versions_layout import MEMORY_SINCE
from backstory.stores.branches import DELIVERY
from backstory.stores.iceberg.store import existing
from backstory.stores.port import LOADING
from backstory.testing.sender import Sender

ADDRESS, CATALOG, *WORDS = sys.argv[1:]


def opened(version=3):
    session = SparkSession.builder.remote(ADDRESS).getOrCreate()
    return session, backstory.open(spark=session, catalog=CATALOG, format_version=version)


def copy(*cells):
    """A full copy from cells `id:city`."""
    rows = [cell.split(":") for cell in cells]
    return pa.table({"id": pa.array([int(id_) for id_, _ in rows]), "city": [city for _, city in rows]})


def records(frame):
    return records_of(frame.toArrow())


def records_of(rows):
    return {row["id"]: row.get("town", row.get("city")) for row in rows.to_pylist()}


def snapshots(session, table):
    return session.table(f"{CATALOG}.{table}.snapshots").count()


def branches(session, table):
    session.sql(f"REFRESH TABLE {CATALOG}.{table}")
    return [row.name for row in session.table(f"{CATALOG}.{table}.refs").collect() if row.name != "main"]


# The laws of the contract at the gate. The deed `fivetran` covers changes of rows in one commit, and of
# columns.
OF_GATE = "replaced or failed"


def contract():
    """The laws of every store hold over Connect, or are refused as in the contract's table."""
    os.environ["BACKSTORY_CONNECT"] = f"{ADDRESS} {CATALOG}"
    laws = str(Path(__file__).parents[1] / "contracts" / "test_stores.py")
    assert pytest.main(["-q", "-p", "no:cacheprovider", laws, *([] if deep(1, 0) else ["-k", OF_GATE])]) == 0


def series():
    """Copies in order, late and restated have the rule's rows. Each row that stays keeps its id if rows have
    ids."""
    seed, version = map(int, WORDS)
    _, warehouse = opened(version)
    native, random = Native(warehouse), Random(seed)
    native.name = f"series.t{seed}"
    table, before = StoredVersions(("v", "o"), overwritten=frozenset("o")), {}
    copies = [
        (50, {"remember": True}),
        (60, {}),
        (55, {}),
        (60, {"restate": True}),
        (70, {}),
        (65, {"restate": True}),
    ]
    for commit, (at, options) in enumerate(copies[: deep(6, 4)]):
        rows = randomly(random, 12)
        taken = take(table, Copy(at, rows, ("v", "o"), **options), commit)
        source = pa.Table.from_pylist([{"k": key, **row} for key, row in rows.items()])
        receipt = native.copy(at, source, max_delete_ratio=1, overwrite=["o"], **options)
        assert dict(receipt.counts) == taken.counts
        table = taken.table
        assert native.rows("v", "o") == by_rule(table, "v", "o")
        now = native.ids() if version > 2 else {}
        stay = now.keys() & before.keys()
        assert {place: now[place] for place in stay} == {place: before[place] for place in stay}
        before, count = now, native.snapshots
        if commit < deep(0, 3):  # at the gate only the last one is repeated
            continue
        assert native.copy(at, source, max_delete_ratio=1, overwrite=["o"], **options).snapshot_id is None
        assert native.snapshots == count
    assert [each for each in warehouse.table(native.name).check() if each["violations"]] == []
    assert branches(native.spark, native.name) == []


def reads():
    """Deliver snapshots, a feed, new columns and files. The caller's own session reads the commits."""
    session, warehouse = opened()
    options = {"into": "crm.c", "key": "id"}
    first = warehouse.snapshot(copy("1:Bonn", "2:Ulm"), at="2026-01-01", **options)
    assert session.table(f"{CATALOG}.crm.c").count() == 2
    frame = session.createDataFrame([(1, "Köln", "x"), (3, "Rom", None)], "id long, city string, more string")
    warehouse.snapshot(frame, at="2026-02-01", **options)
    assert session.table(f"{CATALOG}.crm.c").count() == 4
    Path("c.csv").write_text("id,city,more\n1,Köln,x\n3,Rom,y\n", encoding="utf-8")
    warehouse.snapshot("c.csv", at="2026-03-01", **options)
    table = warehouse.table("crm.c")
    assert records(table.current()) == {1: "Köln", 3: "Rom"}
    assert records(table.as_of("2026-01-15")) == {1: "Bonn", 2: "Ulm"}
    assert records(table.current(known_at=first.recorded_at)) == {1: "Bonn", 2: "Ulm"}
    assert [row["change"] for row in table.diff("2026-01-15", "2026-02-15").orderBy("key").collect()] == [
        "changed",
        "removed",
        "added",
    ]
    assert "Bonn → Köln" in str(table.timeline(1))
    void = pa.table({"id": [1], "parts": pa.array([[]], pa.list_(pa.null()))})
    parts = with_void_columns(session.createDataFrame([(1, [])], "id long, parts array<string>"), void.schema)
    assert type_with_void(parts.schema["parts"]).simpleString() == "array<void>"
    assert [each["counts"]["new"] for each in table.log()] == [0, 1, 2]
    assert {each["door"] for each in table.log()} == {"native"}
    assert "crm.c" in {each["table"] for each in warehouse.tables()}
    assert [each for each in table.check() if each["violations"]] == []
    assert table.rewind(first.recorded_at, apply=True).applied
    assert records(table.current()) == {1: "Bonn", 2: "Ulm"}
    assert [each for each in table.check() if each["violations"]] == []
    feeds(session, warehouse)


def feeds(session, warehouse):
    """Deliver late events and deletions of a feed. The same feed makes no second commit."""

    def events(*cells):
        rows = [cell.split(":") for cell in cells]
        return pa.table(
            {
                "id": pa.array([int(row[0]) for row in rows]),
                "city": [row[1] or None for row in rows],
                "op": [row[2] for row in rows],
                "at": [datetime(2026, 1, int(row[3]), tzinfo=UTC) for row in rows],
            }
        )

    options = {
        "into": "crm.f",
        "key": "id",
        "sequence_by": "at",
        "apply_as_deletes": "op = 'D'",
        "drop": ["op"],
    }
    sent = events("1:Bonn:I:1", "2:Ulm:I:1"), events("1:Köln:U:5", "2::D:6"), events("1:Late:U:3")
    for feed in sent:
        warehouse.apply(feed, **options)
    count = snapshots(session, "crm.f")
    for feed in sent:
        assert warehouse.apply(feed, **options).snapshot_id is None
    assert snapshots(session, "crm.f") == count == 3
    table = warehouse.table("crm.f")
    assert records(table.current()) == {1: "Köln"}
    assert records(table.as_of("2026-01-04")) == {1: "Late", 2: "Ulm"}
    assert [each for each in table.check() if each["violations"]] == []


def changes():
    """The feed equals the rule's, by commit and net, across a compaction, other columns and expired commits."""
    session, warehouse = opened()
    options = {"into": "feed.c", "key": "id"}
    session.sql(f"DROP TABLE IF EXISTS {CATALOG}.feed.c")
    first = warehouse.snapshot(copy("1:Bonn", "2:Ulm"), at="2026-01-01", **options)
    more = copy("1:Köln", "3:Rom", "4:Ulm").append_column("more", pa.array([1, None, 2], pa.int32()))
    warehouse.snapshot(more, at="2026-02-01", **options)
    name = f"{CATALOG}.feed.c"
    session.sql(f"CALL {CATALOG}.system.rewrite_data_files('feed.c', options => map('rewrite-all', 'true'))")
    session.sql(f"ALTER TABLE {name} RENAME COLUMN city TO town")
    session.sql(f"ALTER TABLE {name} ALTER COLUMN more TYPE bigint")
    renamed = copy("1:Köln", "4:Ulm").rename_columns(["id", "town"])
    warehouse.snapshot(renamed, at="2026-03-01", **options)
    session.sql(f"REFRESH TABLE {name}")
    versions = session.table(f"{name}.snapshots").orderBy("committed_at").collect()
    states = [[], *(states_at(session, name, each.snapshot_id) for each in versions)]
    table, rule = warehouse.table("feed.c"), changes_of_commits(states, start)
    assert by_feed(table) == sorted(map(line, rule))
    assert by_feed(table, since=1) == sorted(line(each) for each in rule if each.version > 1)
    netted = net(changes_of_commits(states[1:], start, 2), start)
    assert by_feed(table, since=1, net=True) == sorted(map(line, netted))
    assert by_feed(table, since=4) == by_feed(table, since=2, until=3) == []
    session.sql(f"ALTER TABLE {name} CREATE TAG first AS OF VERSION {versions[0].snapshot_id}")
    session.sql(f"CALL {CATALOG}.system.expire_snapshots('feed.c', now(), 1)")
    assert code_of(lambda: table.changes(since=1)) == "snapshots-expired"
    expired = net(changes_of_commits([states[1], states[4]], start), start)
    assert by_feed(table, since=1, net=True) == sorted(line(each, version=False) for each in expired)
    by_rows = [line(each, version=each.version == 4) for each in rule if each.version > 1]
    assert by_feed(table, since=first.recorded_at) == sorted(by_rows)
    assert code_of(lambda: table.changes(cursor="c")) == "needs-java"
    older = f"{CATALOG}.feed.older"
    session.sql(f"DROP TABLE IF EXISTS {older}")
    session.sql(f"CREATE TABLE {older} (v string) USING iceberg TBLPROPERTIES ('format-version' = '2')")
    session.sql(f"INSERT INTO {older} VALUES ('x'), ('x'), (NULL)")
    session.sql(f"UPDATE {older} SET v = 'y' WHERE v IS NULL")
    with warehouse.table("feed.older").changes(since=1) as feed:
        assert sorted((row["_change_type"], row["v"]) for row in feed.frame.collect()) == [
            ("delete", None),
            ("insert", "y"),
        ]


def states_at(session, name, snapshot):
    """The versions at a snapshot, in the table's present columns."""
    rows = session.sql(f"SELECT * FROM {name} VERSION AS OF {snapshot} WHERE _memory.role IS NULL")
    return [
        {"town": row.pop("city", None), "more": None, **row}
        for row in rows.drop("_memory").toArrow().to_pylist()
    ]


def start(row):
    return row["id"], row["valid_from"]


def line(change, *, version=True):
    row = {name: str(value) for name, value in sorted(change.row.items())}
    return str((str(change.type), change.version if version else None, row))


def by_feed(table, **options):
    with table.changes(**options) as feed:
        rows = feed.frame.toArrow().to_pylist()
    feed_changes = [Changed(row.pop("_change_type"), row.pop("_commit_version"), row) for row in rows]
    assert all(each.row.pop("_commit_timestamp") is not None or each.version is None for each in feed_changes)
    return sorted(map(line, feed_changes))


def previews():
    """A published preview is the result of its deliveries. It is refused if the table has newer commits."""
    session, warehouse = opened()
    copies = copy("1:Bonn", "2:Ulm"), copy("1:Bonn", "2:Köln", "3:Rom"), copy("1:Bonn", "3:Rom")
    plain, into = ({"into": f"preview.{name}", "key": "id"} for name in "ab")
    session.sql(f"DROP TABLE IF EXISTS {CATALOG}.preview.b")
    session.sql(f"DROP TABLE IF EXISTS {CATALOG}.preview.a")
    for day, rows in enumerate(copies, 1):
        warehouse.snapshot(rows, at=f"2026-01-0{day}", **plain)
        warehouse.snapshot(rows, at=f"2026-01-0{day}", **into, branch="p" if day > 1 else None)
    table, preview = warehouse.table("preview.b"), warehouse.branch("preview.b", "p")
    assert plain_rows(preview) == plain_rows(warehouse.table("preview.a")) != plain_rows(table)
    assert (len(table.log()), len(preview.log())) == (1, 3)
    assert [each for each in preview.check() if each["violations"]] == []
    wide = copy("1:Bonn").append_column("more", pa.array([1]))
    assert code_of(lambda: warehouse.snapshot(wide, branch="p", **into)) == "not-on-branch"
    with before_statement(
        session,
        "CALL",
        f"INSERT INTO {CATALOG}.preview.b.branch_p SELECT * FROM {CATALOG}.preview.b WHERE false",
    ):
        published = warehouse.publish("preview.b", "p")
    assert (published.commits, dict(published.counts)["changed"]) == (2, 1)
    assert plain_rows(table) == plain_rows(warehouse.table("preview.a"))
    assert [each for each in table.check() if each["violations"]] == []
    assert branches(session, "preview.b") == ["p"]  # the table got another commit meanwhile
    assert warehouse.publish("preview.b", "p", discard=True).discarded
    warehouse.snapshot(copies[1], at="2026-01-04", **into, branch="p", remember=True)
    assert code_of(lambda: warehouse.publish("preview.b", "p")) == "needs-java"
    warehouse.snapshot(copies[1], at="2026-01-05", **into)
    assert code_of(lambda: warehouse.publish("preview.b", "p")) == "branch-behind"
    assert warehouse.publish("preview.b", "p", discard=True).discarded
    assert branches(session, "preview.b") == []
    assert code_of(lambda: warehouse.branch("preview.b", "p")) == "no-branch"


def plain_rows(table):
    """The rows of a table without the times at which they were recorded."""
    rows = table.store.spark.table(table.store.sql_name(table.name)).drop("recorded_at", "_memory")
    return sorted(map(str, rows.toArrow().to_pylist()))


@contextmanager
def before_statement(session, word, other, *, instead=False):
    """Run another statement right before the first one that contains a word, or instead of it."""
    kind, run, others = type(session), type(session).sql, [other]

    def sql(self, query, *rest, **more):
        if others and word in query:
            answer = run(session, others.pop())
            if instead:
                return answer
        return run(self, query, *rest, **more)

    kind.sql = sql
    try:
        yield
    finally:
        kind.sql = run
    assert others == []


def runs():
    """A project runs as in any session, with its log, views, exports, frames of the server, and a stream's
    function."""
    session, warehouse = opened()
    for name in ("run.customer", "run.daily", "run.twice", "run.event"):
        session.sql(f"DROP TABLE IF EXISTS {CATALOG}.{name}")
    entries = [
        "run.customer: {source: customer.csv, key: id}",
        "run.daily: {source: 'daily-{at:%Y-%m-%d}.csv', key: id}",
        "run.twice: {source: 'twice.csv', key: id}",
    ]
    Path("histories.yaml").write_text("\n  ".join(["format: histories/1\ntables:", *entries]) + "\n")
    for name, rows in (
        ("customer", "1,Bonn"),
        ("daily-2026-01-01", "1,Bonn"),
        ("daily-2026-01-02", "1,Köln"),
    ):
        Path(f"{name}.csv").write_text(f"id,city\n{rows}\n2,Ulm\n", encoding="utf-8")
    Path("twice.csv").write_text("id,v\n1,a\n1,b\n")
    first = warehouse.run()
    assert statuses(first) == ["changed", "changed", "refused"], first
    assert statuses(warehouse.run(select=["run.customer", "run.daily"])) == ["unchanged", "unchanged"]
    Path("twice.csv").write_text("id,v\n1,a\n")
    assert statuses(warehouse.run(failed=True)) == ["changed"]
    assert [each["changed"] for each in warehouse.runs()][:3] == [1, 0, 2]
    table = warehouse.table("run.daily")
    assert table.export("daily.csv").rows == 3
    lines = Path("daily.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[1] for line in lines] == ['"city"', '"Bonn"', '"Köln"', '"Ulm"']
    made = [view["made"] for _ in range(2) for view in table.views()]
    assert made == [CATALOG == "rest"] * 2 + [False] + [CATALOG == "rest"] * 2 + [False]
    if CATALOG == "rest":
        assert session.table("rest.run.daily_current").count() == 2
    events = session.sql("SELECT id, 'x' AS city, TIMESTAMP'2026-01-01' AS at, 'I' AS op FROM range(3)")
    options = {"into": "run.event", "key": "id", "sequence_by": "at", "apply_as_deletes": "op = 'D'"}
    write = cloudpickle.loads(cloudpickle.dumps(warehouse.apply_batch(**options)))
    for number in (0, 1):
        write(events, number)
    assert [each["counts"]["began"] for each in warehouse.table("run.event").log()] == [3]
    unsafe = {**options, "into": "run.no", "apply_as_deletes": "op = lower('D')"}
    assert code_of(lambda: warehouse.apply(events, **unsafe)) == "needs-java"


def statuses(receipts):
    return [each.status for each in receipts]


def fivetran():
    """Tables are created, written in both modes, altered, truncated, renamed and dropped by the RPCs."""
    _, warehouse = opened()
    with serving({CATALOG: warehouse.store}) as address:
        sender = Sender.to(address, Path().absolute())
        live = Place.made(sender, warehouse.store, "sent", LIVE, "id v n synced \n 1 a 1 T1 \n 2 b 2 T1")
        batch = {
            "replace": live.files("id v n synced \n 3 c 3 T2"),
            "update": live.files("id v synced \n 1 A T2"),
        }
        batch["delete"] = live.files("id \n 2")
        live.send(**batch)
        assert live.rows() == gives("id v n synced \n 1 A 1 T2 \n 3 c 3 T2")
        commits = len(live.snapshots())
        live.send(**batch)
        assert len(live.snapshots()) == commits
        live = live.alter("id:LONG* v n:LONG synced w:LONG")
        assert live.described() == column_types(live.table)
        live.write(replace="id v n synced w \n 4 d 4 T3 7")
        assert live.rows("id w") == gives("id w \n 1 - \n 3 - \n 4 7")
        live = live.alter("id:LONG* v n:LONG synced", drop_columns=True)
        done(live.truncate(instant("T3")))
        assert live.rows() == gives("id v n synced \n 4 d 4 T3")
        with pytest.raises(Refused, match="needs Iceberg's Java"):
            live.alter("id:LONG v* n:LONG synced")
        done(live.migrate("copy_table", from_table=live.table.name, to_table="copied"))
        if CATALOG == "rest":  # a Hadoop catalog cannot rename tables
            done(live.migrate("rename_table", from_table=live.table.name, to_table="renamed"))
            live = live.named("renamed")
        assert live.rows() == live.named("copied").rows()
        done(live.named("copied").migrate("drop_table"))
        assert live.named("copied").described() is None
        history = Place.made(sender, warehouse.store, "sent", HISTORY, VERSIONS)
        history.write(
            earliest="id start \n 1 T5",
            replace="id v n start end active synced \n 1 e 1 T5 TMAX true T5",
            delete="id end synced \n 3 T7 T7",
        )
        assert history.rows("id v _fivetran_start _fivetran_end _fivetran_active") == gives(
            """
            id v start end  active
            1  a T1    T2-1 false
            1  b T2    T5-1 false
            1  e T5    TMAX true
            2  c T1    T3   false
            3  d T3    T7   false
            """
        )
        for table in (live, history):
            assert [each for each in warehouse.table(str(table.name)).check() if each["violations"]] == []


def models():
    """A model's loads give base and history, and a log. A load that fails between its commits is undone."""
    os.environ["BACKSTORY_PEPPER"] = "a long secret for tests"
    session, warehouse = opened()
    Path("model.yaml").write_text(MODEL)
    for month, rows in enumerate((LOADED, LOADED_NEXT, LOADED_NEXT), 1):
        Path("stage.csv").write_text(rows)
        if month == deep(2, 0):  # a load that ends after its first commit, which is undone
            write = f"MERGE INTO `{CATALOG}`.`rawcore`.`rc_c_hist`"
            with before_statement(session, write, "SELECT no_such_column"):
                (loaded,) = warehouse.historize("model.yaml", run_id="2", load_timestamp="2026-02-01")
            assert loaded.error is not None
            assert records(warehouse.table("rawcore.rc_c").current()) == {1: "Bern", 2: "Rome"}
            assert LOADING not in existing(warehouse.store, TableName("rawcore", "rc_c_hist")).properties
        (loaded,) = warehouse.historize("model.yaml", run_id=str(month), load_timestamp=f"2026-0{month}-01")
        assert loaded.error is None, loaded
        changed = {kind: count for kind, count in loaded.counts.items() if count}
        assert changed == [{"new": 2}, {"new": 1, "changed": 1, "deleted": 1}, {"unchanged": 2}][month - 1]
    history = warehouse.table("rawcore.rc_c_hist")
    assert records(history.as_of("2026-01-15")) == {1: "Bern", 2: "Rome"}
    assert records(history.current()) == {1: "Oslo", 3: "Graz"}
    for name in ("rawcore.rc_c", "rawcore.rc_c_hist"):
        assert [each for each in warehouse.table(name).check() if each["violations"]] == []
    logged = session.table(f"{CATALOG}.{LOG.schema}.{LOG.name}").where("status = 'success'")
    assert logged.count() == 2


def datasets():
    """Files become events of logs, whose chains and hashes hold. Known events make no commit."""
    session, warehouse = opened()
    for kind, expected in (
        ("snapshot", counts(appended=3, retracted=1, corrected=1)),
        ("upsertStream", counts(appended=3, corrected=1)),
        ("ledger", counts(appended=3, conflicts=1)),
    )[: deep(3, 1)]:
        merge = f"{{kind: {kind}, primaryKey: [city]{'' if kind == 'ledger' else ', encoding: op'}}}"
        dataset = Dataset(warehouse.store, Path(kind), merge, "city STRING, n BIGINT")
        dataset.add()
        sums = Counter[str]()
        for rows in ("A,1 B,2", "A,3 C,4"):
            sums.update(dataset.push(rows).counts)
        assert counts(**sums) == expected
        verdict = warehouse.verify(dataset.name, namespace=dataset.namespace)
        assert (verdict.problems, verdict.error) == ([], None)
        commits = snapshots(session, f"{dataset.namespace}.`{dataset.name}`")
        dataset.push("A,3 C,4")
        assert snapshots(session, f"{dataset.namespace}.`{dataset.name}`") == commits
    dataset = Dataset(warehouse.store, Path("query"), "{kind: append}", "city STRING, n BIGINT")
    query = "{kind: sql, engine: spark, query: SELECT city FROM input}"
    assert code_of(lambda: dataset.add(preprocess=query)) == "needs-java"


def streams():
    """`foreachBatch` runs `apply_batch` in a process of the server. Repeated batches make no commit."""
    session, warehouse = opened()
    session.sql(f"DROP TABLE IF EXISTS {CATALOG}.stream.s")
    Path("in").mkdir()
    write = warehouse.apply_batch(into="stream.s", key="id", sequence_by="at")
    for day, checkpoint in ((1, "a"), (3, "a"), (2, "a"), (4, "b")):
        Path(f"in/{day}.json").write_text(f'{{"id": 1, "city": "{day}", "at": "2026-01-0{day}T00:00:00Z"}}\n')
        rows = session.readStream.schema("id long, city string, at timestamp").json(
            str(Path("in").absolute())
        )
        place = str(Path(checkpoint).absolute())
        stream = rows.writeStream.foreachBatch(write).option("checkpointLocation", place)
        query = stream.trigger(availableNow=True).start()
        assert query.awaitTermination(300)
    table = warehouse.table("stream.s")
    assert len(table.log()) == 4
    for day in range(1, 5):
        assert records(table.as_of(f"2026-01-0{day}")) == {1: str(day)}


def doctor():
    """Every ability works. A failing one is reported, and nothing is left."""
    session, warehouse = opened()
    report = warehouse.doctor()
    assert [each for each in report.abilities if each.error] == [], report
    views = {"make views": "works" if CATALOG == "rest" else "absent"}
    assert {each.ability: each.status for each in report.abilities if each.status != "works"} == {
        name: status for name, status in views.items() if status != "works"
    }
    assert (report.exit_code, report.versions["spark"]) == (0, session.version)
    assert all(report.versions.values())
    with before_statement(session, "fast_forward(", "SELECT 1", instead=True):
        report = {each.ability: each.status for each in warehouse.doctor().abilities}
    assert report["move the table to its branch"] == "fails"
    assert report["refuse a branch without the newest commit"] == report["read by Spark"] == "not tried"
    assert "backstory_doctor" not in str(session.sql(f"SHOW NAMESPACES IN {CATALOG}").collect())


def values(state):
    """Deliver records with the extreme values of each type. Some columns have the names of statements."""
    instant, naive = pa.timestamp("us", "UTC"), pa.timestamp("us")
    return pa.table(
        {
            "id": [1, 2],
            "t": [state, "same"],
            "s": ["é\u0000𝄞", ""],
            "decimal": pa.array([Decimal("-12345678901234567890.1234567890"), None], pa.decimal128(38, 10)),
            "binary": [b"\x00\xff", None],
            "date": [date(1, 1, 1), date(9999, 12, 31)],
            "instant": pa.array(
                [datetime(1, 1, 1, 1, 2, 3, 4, UTC), datetime(9999, 12, 31, tzinfo=UTC)], instant
            ),
            "naive": pa.array([datetime(1582, 10, 10, 1, 2, 3, 456789), None], naive),
            "float": pa.array([float("nan"), -0.0], pa.float32()),
            "double": [1e308, float("-inf")],
            "flag": [True, None],
            "list": [[{"a": 1, "b": ["x", None]}], []],
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
            "short": pa.array([1, -2], pa.int16()),
            "od`d \\ 'name": ["x", "y"],
        }
    )


def types():
    """Check that values remain exact, even in a closed version, with any names of tables and columns."""
    _, warehouse = opened()
    name, options = "types.we{ir}d [t]*", {"key": "id"}
    for month in (1, 2):
        assert warehouse.snapshot(
            values(str(month)), into=name, at=f"2026-0{month}-01", **options
        ).snapshot_id
    for month in (1, 2):
        rows = warehouse.table(name).as_of(f"2026-0{month}-15").drop("valid_from", "valid_to").orderBy("id")
        assert repr(rows.toArrow().to_pylist()) == repr(values(str(month)).to_pylist())


def shapes():
    """With a copy, types are widened, structs grow and columns are renamed. Earlier states are read as
    before."""
    session, warehouse = opened()
    options = {"into": "shapes.c", "key": "id"}
    session.sql(f"DROP TABLE IF EXISTS {CATALOG}.shapes.c")
    before = pa.table(
        {
            "id": [1, 2],
            "n": pa.array([1, 2], pa.int16()),
            "d": pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
            "s": [{"a": 1}, None],
            "city": ["Bonn", "Ulm"],
        }
    )
    after = pa.table(
        {
            "id": [1, 2],
            "n": [1, 1 << 40],
            "d": pa.array([Decimal("1.50"), Decimal("1234567.89")], pa.decimal128(9, 2)),
            "s": [{"a": 1, "b": None}, {"a": 2, "b": "x"}],
            "town": ["Bonn", "Ulm"],
            "more": ["y", None],
        }
    )
    warehouse.snapshot(before, at="2026-01-01", remember=True, **options)
    assert (
        warehouse.snapshot(after, at="2026-03-01", rename={"city": "town"}, **options).counts["changed"] == 2
    )
    table = warehouse.table("shapes.c")
    assert table.as_of("2026-03-15").drop("valid_from", "valid_to").orderBy("id").toArrow().to_pylist() == (
        after.to_pylist()
    )
    then = table.as_of("2026-01-15").drop("valid_from", "valid_to").orderBy("id").toArrow().to_pylist()
    assert then == [
        {**row, "s": row["s"] and {**row["s"], "b": None}, "more": None}
        for row in before.rename_columns(["id", "n", "d", "s", "town"]).to_pylist()
    ]
    assert warehouse.snapshot(after, at="2026-03-01", rename={"city": "town"}, **options).snapshot_id is None
    late = after.drop_columns(["more"])
    assert warehouse.snapshot(late, at="2026-02-01", **options).snapshot_id is not None
    assert existing(warehouse.store, table.name).foreign_writes == []
    assert [each for each in table.check() if each["violations"]] == []


def refusals():
    """Check that everything that needs Java is refused with one code, before anything is written."""
    session, warehouse = opened()
    options = {"into": "no.c", "key": "id"}
    warehouse.snapshot(copy("1:Bonn", "2:Ulm"), at="2026-01-01", **options)
    table, count = warehouse.table("no.c"), snapshots(session, "no.c")
    renamed, typed = copy("1:Bonn").rename_columns(["no", "city"]), copy("1:1")
    tries = [
        lambda: warehouse.snapshot(renamed, into="no.c", at="2026-02-01", rename={"id": "no"}),
        lambda: warehouse.snapshot(typed, at="2026-02-01", retype={"city": "BIGINT"}, **options),
        lambda: warehouse.snapshot(
            session.range(200_000).selectExpr("id", "'x' AS city"), at="2026-02-01", **options
        ),
        lambda: table.changes(cursor="c"),
        lambda: table.maintain(),
        lambda: table.forget(1, apply=True),
        lambda: warehouse.sql("SELECT 1"),
        lambda: warehouse.explore(),
    ]
    codes = [code_of(each) for each in tries]
    assert codes == ["needs-java"] * len(tries), codes
    for act, command in ((tries[4], "maintain no.c"), (tries[5], "forget no.c KEY")):
        with pytest.raises(UsageError, match=f"`backstory {command}`"):
            act()
    assert snapshots(session, "no.c") == count
    assert branches(session, "no.c") == []
    if CATALOG == "rest":  # a Hadoop catalog cannot rename tables
        assert table.drop(archive="no.kept", apply=True).applied
        table = warehouse.table("no.kept")
        assert records(table.current()) == {1: "Bonn", 2: "Ulm"}
    assert table.drop(apply=True).applied
    assert {code_of(lambda name=name: warehouse.table(name)) for name in ("no.c", "no.kept")} == {"no-table"}
    assert code_of(lambda: backstory.open(spark=session, catalog="nothing")) == "no-iceberg-catalog"


def code_of(act):
    try:
        act()
    except backstory.BackstoryError as error:
        return error.code
    return "no error"


FIRST, SECOND = copy("1:Bonn", "2:Ulm"), copy("1:Köln", "3:Rom")
EARLIER = copy("1:Köln", "2:Ulm", "3:Rom")


def die(kind, after):
    """End the process after the statement that contains these words."""
    run = kind.sql

    def sql(self, query, *rest, **more):
        answer = run(self, query, *rest, **more)
        if after in query:
            os._exit(9)
        return answer

    kind.sql = sql


def deliver(after=""):
    """Deliver an earlier copy with a new column and a new name, which starts the table's memory. The process
    may die."""
    session, warehouse = opened()
    if after:
        die(type(session), after)
    rows = EARLIER.rename_columns(["id", "town"]).append_column("more", pa.array(["x", None, None]))
    options = {"at": "2025-12-01", "backfill": True, "rename": {"city": "town"}}
    return warehouse.snapshot(rows.append_column("n", pa.array([1, 2, 1 << 40])), into="kills.c", **options)


def killed():
    deliver(" ".join(WORDS))


PUBLISHED = {"CALL", MEMORY_SINCE, "DROP BRANCH"}


def kills():
    """After a kill, a table is in its state before or after, with its properties. The next delivery completes
    it."""
    session, warehouse = opened()
    point = " ".join(WORDS)
    done = point in PUBLISHED
    session.sql(f"DROP TABLE IF EXISTS {CATALOG}.kills.c")
    first = FIRST.append_column("n", pa.array([1, 2], pa.int32()))
    warehouse.snapshot(first, into="kills.c", key="id", at="2026-01-01")
    words = [sys.executable, __file__, ADDRESS, CATALOG, "killed", point]
    assert subprocess.run(words, check=False).returncode == 9
    has_branch = point in {"CREATE BRANCH", "MERGE INTO", *PUBLISHED} - {"DROP BRANCH"}
    assert len(branches(session, "kills.c")) == has_branch
    table = warehouse.table("kills.c")
    assert records(table.current()) == {1: "Bonn", 2: "Ulm"}
    assert records(table.as_of("2025-12-15")) == (records_of(EARLIER) if done else {})
    assert len(table.log()) == 1 + done  # an unfinished commit is not in the table
    assert (MEMORY_SINCE in existing(warehouse.store, table.name).properties) is done
    assert (deliver().snapshot_id is None) is done
    assert [each for each in table.check() if each["violations"]] == []
    assert existing(warehouse.store, table.name).foreign_writes == []
    if done:  # a delivery without a commit leaves the rest to the next one
        last = FIRST.rename_columns(["id", "town"]).append_column("more", pa.array(["y", None]))
        warehouse.snapshot(last.append_column("n", first["n"]), into="kills.c", at="2026-03-01")
    assert records(table.as_of("2025-12-15")) == records_of(EARLIER)
    assert branches(session, "kills.c") == []
    assert MEMORY_SINCE in {row.key for row in session.sql(f"SHOW TBLPROPERTIES {CATALOG}.kills.c").collect()}


# The number of deliveries of each of two writers.
EACH = deep(4, 2)


def writes():
    """Deliver events of some records, one delivery for each event, after a line that announces this."""
    _, warehouse = opened()
    sys.stdout.write("writes\n")
    sys.stdout.flush()
    for number in range(EACH):
        rows = pa.table(
            {
                "id": pa.array([int(WORDS[0])]),
                "city": [str(number)],
                "at": [datetime(2026, 1, 1 + number, tzinfo=UTC)],
            }
        )
        warehouse.apply(rows, into="both.f", key="id", sequence_by="at")


def writers():
    """Write to one table from this process and another one. Nothing is lost. Each commit follows the last."""
    session, warehouse = opened()
    words = [sys.executable, __file__, ADDRESS, CATALOG, "writes", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"writes\n"
        act("writes", "2")
        other.stdout.read()  # it may still log
    assert other.returncode == 0
    rows = session.table(f"{CATALOG}.both.f").where("_memory.role IS NULL").toArrow().to_pylist()
    assert sorted((row["id"], row["city"]) for row in rows) == [
        (id_, str(number)) for id_ in (1, 2) for number in range(EACH)
    ]
    history = session.table(f"{CATALOG}.both.f.history").where("is_current_ancestor").count()
    assert history == 2 * EACH
    assert branches(session, "both.f") == []
    assert [each for each in warehouse.table("both.f").check() if each["violations"]] == []


def conflicts():
    """Commit as another program between plan and publication. The delivery is planned again on its rows."""
    session, warehouse = opened()
    options = {"into": "late.c", "key": "id"}
    session.sql(f"DROP TABLE IF EXISTS {CATALOG}.late.c")
    warehouse.snapshot(FIRST, at="2026-01-01", **options)
    kind, others = type(session), ["CREATE BRANCH", "MERGE INTO", "CALL"]
    run = kind.sql

    def sql(self, query, *rest, **more):
        if others and others[0] in query:
            del others[0]
            run(session, f"INSERT INTO {CATALOG}.late.c SELECT * FROM {CATALOG}.late.c WHERE false")
        return run(self, query, *rest, **more)

    kind.sql = sql
    warehouse.snapshot(SECOND, at="2026-02-01", **options)
    kind.sql = run
    assert others == []
    doors = [
        row.summary.get(DOOR)
        for row in session.sql(
            f"SELECT s.summary FROM {CATALOG}.late.c.snapshots s JOIN {CATALOG}.late.c.history h "
            "ON s.snapshot_id = h.snapshot_id WHERE h.is_current_ancestor ORDER BY s.committed_at"
        ).collect()
    ]
    assert doors == ["native", None, None, None, "native"]
    assert records(warehouse.table("late.c").current()) == {1: "Köln", 3: "Rom"}
    assert [each for each in branches(session, "late.c") if each.startswith(DELIVERY)] == []


def act(deed, *words):
    WORDS[:] = words
    globals()[deed]()


def act_each(lines, answers):
    """Do each deed of the lines, and write whether it failed."""
    for line in lines:
        failure = None
        try:
            act(*json.loads(line))
        except Exception:  # noqa: BLE001 - the test that asks fails with it
            failure = traceback.format_exc()[-4000:]
        print(json.dumps(failure), file=answers, flush=True)


if __name__ == "__main__":
    if WORDS:
        act(*WORDS)
    else:
        answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # the output of deeds is not an answer
        act_each(sys.stdin, answers)
