"""Keys, sequences and values of any type in the plan of a feed, and the keys of its refusals."""

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from feed_plans import placed, with_marks

from backstory.formats.delivered import arrow_schema, shape_rows
from backstory.model.layout import POSITION
from backstory.model.table import Column
from backstory.model.types import ColumnType, Kind
from backstory.model.versions_layout import MEMORY_TYPE, OWN_COLUMNS
from backstory.strategies.copies.comparison import CLAIMED, DIFFERING, plan_rows
from backstory.strategies.copies.comparison import FAULTS as COPY_FAULTS
from backstory.strategies.copies.comparison import OUTSIDE as OUTSIDE_SCOPE
from backstory.strategies.copies.plan import CopyTerms
from backstory.strategies.copies.version_rows import copy_mark as one_mark
from backstory.strategies.feeds.arrival import CONFLICT, NO_KEY, NO_SEQUENCE, SETTLED, SPOILT, check_delivery
from backstory.strategies.feeds.copy_plan import FeedCopyTerms
from backstory.strategies.feeds.plan import plan_records
from backstory.strategies.feeds.terms import ASSERTED, AT, FURTHER, KIND, FeedTerms

TEXT, DOUBLE = ColumnType(Kind.STRING), ColumnType(Kind.DOUBLE)
DATES = {day: datetime(2026, 1, day, tzinfo=UTC) for day in range(1, 32)}


def terms_of(key=(("k", TEXT),), value=TEXT, further=None, **more):
    memory = MEMORY_TYPE
    if further is not None:
        struct = ColumnType(Kind.STRUCT, parts=(("s", further),))
        memory = ColumnType(Kind.STRUCT, parts=(*memory.parts, ("sequence", struct)))
    own = (*OWN_COLUMNS[:-1], Column(OWN_COLUMNS[-1].name, memory))
    columns = (*(Column(*each) for each in key), Column("v", value), *own)
    names = tuple(name for name, _ in key)
    sequence = () if further is None else ("s",)
    return FeedTerms(columns, names, ("v",), 99, {"v": len(key) + 1}, sequence=sequence, **more)


def events(terms, rows):
    """Events from rows such as `(key, value, day, kind, sequence)`. A composite key is a tuple."""
    types = {each.name: each.type for each in terms.columns}
    schema = arrow_schema({name: types[name] for name in (*terms.key, "v")})
    schema = schema.append(pa.field(AT, pa.timestamp("us", "UTC"))).append(pa.field(KIND, pa.string()))
    schema = schema.append(pa.field(ASSERTED, pa.list_(pa.int32())))
    if terms.sequence:
        memory = arrow_schema(types).field("_memory").type
        schema = schema.append(pa.field(FURTHER, memory.field("sequence").type))
    event_rows = []
    for key, value, day, kind, *further in rows:
        keys = dict(zip(terms.key, key if isinstance(key, tuple) else (key,), strict=True))
        fields = {"v": value, AT: DATES.get(day), KIND: kind, FURTHER: {"s": further[0]} if further else None}
        event_rows.append({**keys, **fields})
    return pa.Table.from_pylist(event_rows, schema)


def empty(terms):
    return placed(pa.Table.from_pylist([], arrow_schema({each.name: each.type for each in terms.columns})))


def planned(terms, rows, stored=None):
    table = empty(terms) if stored is None else stored
    arrival = check_delivery(terms, events(terms, rows), empty(terms))
    return with_marks(arrival, [plan_records(terms, arrival, arrival.events, table)])


def lives(plan, *names):
    versions = [row for row in plan.added.to_pylist() if (row["_memory"] or {}).get("role") is None]
    spans = [
        (*(row[name] for name in names), row["valid_from"].day, row["valid_to"] and row["valid_to"].day)
        for row in versions
    ]
    return sorted(spans, key=repr)


def test_a_truncate_ends_the_records_of_every_composite_key():
    """Without a further sequence, keys with equal concatenated texts still differ."""
    terms = terms_of((("k", TEXT), ("l", TEXT)))
    plan = planned(
        terms,
        [
            (("ab", "c"), "x", 1, "upsert"),
            (("a", "bc"), "y", 2, "upsert"),
            ((None, None), None, 3, "truncate"),
        ],
    )
    assert lives(plan, "k", "l", "v") == [("a", "bc", "y", 2, 3), ("ab", "c", "x", 1, 3)]
    assert plan.counts == {"began": 2, "ended": 1}


@pytest.mark.parametrize(
    ("type_", "first", "last"),
    [
        (TEXT, "Z", "a"),
        (TEXT, "\ufb00", "\U0001f600"),
        (ColumnType(Kind.BOOLEAN), False, True),
        (ColumnType(Kind.LONG), -1, 2**60),
        (DOUBLE, -0.5, 0.0),
        (ColumnType(Kind.DECIMAL, 20, 2), Decimal("9.5"), Decimal("10.25")),
        (ColumnType(Kind.UTC_DATETIME), DATES[1], DATES[2]),
        (ColumnType(Kind.NAIVE_DATE), DATES[1].date(), DATES[2].date()),
    ],
    ids=str,
)
def test_V21_events_of_one_instant_are_in_the_order_of_their_sequence(type_, first, last):
    """Numbers are ordered by value, texts by code point, and false is before true, in any order of arrival."""
    terms = terms_of(further=type_)
    rows = [("k", "new", 1, "upsert", last), ("k", "old", 1, "upsert", first)]
    for ordered_rows in (rows, rows[::-1]):
        plan = planned(terms, ordered_rows)
        assert lives(plan, "v") == [("new", 1, None)]
        assert plan.counts == {"began": 1, "silent": 1}


def test_V16_nested_values_and_float_keys_are_compared_by_value():
    list_ = ColumnType(Kind.LIST, parts=(("element", DOUBLE),))
    terms = terms_of((("k", DOUBLE),), list_)
    nan = float("nan")
    plan = planned(
        terms,
        [(0.0, [1.0, nan], 1, "upsert"), (-0.0, [1.0, nan], 1, "upsert"), (0.0, [1.0, nan], 2, "upsert")],
    )
    assert plan.counts == {"began": 1, "duplicate": 1, "silent": 1}
    assert [(row[1], row[2]) for row in lives(plan, "v")] == [(1, None)]
    assert planned(terms, [(nan, [0.0], 1, "upsert"), (nan, [-0.0], 2, "upsert")]).counts == {
        "began": 1,
        "silent": 1,
    }


def test_V47_V53_refusals_of_events_have_sample_keys():
    terms = terms_of(further=DOUBLE)
    lacking = planned(
        terms,
        [
            (None, "a", 1, "upsert", 1.0),
            ("k", "a", 1, "upsert", float("nan")),
            ("m", "a", None, "upsert", 1.0),
        ],
    )
    assert (lacking.counts[NO_KEY], lacking.counts[NO_SEQUENCE]) == (1, 2)
    assert lacking.samples[NO_SEQUENCE].to_pylist() == [{"k": "k"}, {"k": "m"}]
    tie = planned(
        terms, [("k", "a", 1, "upsert", 1.0), ("k", None, 1, "delete", 1.0), ("m", "a", 1, "upsert", 1.0)]
    )
    assert (tie.counts[CONFLICT], tie.samples[CONFLICT].to_pylist()) == (1, [{"k": "k"}])
    cleared = planned(terms, [("k", "a", 1, "upsert", 1.0), (None, None, 1, "truncate", 1.0)])
    assert cleared.samples[CONFLICT].to_pylist() == [{"k": "k"}]
    many = planned(terms, [(f"{n}", "a", 1, "upsert", 1.0) for n in range(30) for _ in (1, 2)])
    assert (many.counts, len(many.samples["began"])) == ({"began": 30, "duplicate": 30}, 10)


def test_V120_changes_are_counted_by_column():
    """Only events that change an existing record count."""
    plan = planned(terms_of(), [("k", "a", 1, "upsert"), ("k", "b", 2, "upsert"), ("m", "a", 1, "upsert")])
    assert plan.counts == {"began": 3, "drives v": 1}


def test_V29_events_of_settled_instants_are_refused_or_dropped():
    day = int(DATES[3].timestamp()) * 1_000_000
    rows = [("k", "a", 3, "upsert"), ("m", "a", 4, "upsert")]
    refused = planned(terms_of(settled=(None, day)), rows)
    assert (refused.counts[SETTLED], refused.samples[SETTLED].to_pylist()) == (1, [{"k": "k"}])
    dropped = planned(terms_of(settled=(None, day), drops=True), rows)
    assert dropped.counts == {"began": 1, "too_late": 1}


def test_V119_two_versions_at_one_time_are_found():
    terms = terms_of()
    version = {"k": "k", "v": "a", "valid_from": DATES[1], "is_current": True, "recorded_at": DATES[1]}
    rows = placed(
        pa.Table.from_pylist([version, version], empty(terms).drop_columns(["_file", POSITION]).schema)
    )
    plan = planned(terms, [("k", "b", 2, "upsert")], rows)
    assert (plan.counts, plan.samples[SPOILT].to_pylist()) == ({SPOILT: 1}, [{"k": "k"}])


def test_V41_V43_refusals_of_copies_have_their_keys():
    terms = terms_of(further=DOUBLE)
    day = int(DATES[2].timestamp()) * 1_000_000
    version = {"k": "k", "v": "e", "valid_from": DATES[1], "is_current": True, "recorded_at": DATES[1]}
    other = {"role": "fact", "kind": "copy", "scope": '{"v": "e"}'}
    mark = {"valid_from": DATES[2], "valid_to": DATES[2], "is_current": False, "_memory": other}
    schema = empty(terms).drop_columns(["_file", POSITION]).schema
    rows, marks = (placed(pa.Table.from_pylist([each], schema)) for each in (version, mark))

    def faults(copy, scope):
        delivered = pa.Table.from_pylist(copy, arrow_schema({"k": TEXT, "v": TEXT}))
        own = shape_rows(one_mark(day, terms.recorded, terms.memory, None, "{}"), terms.columns, ids=True)
        others = shape_rows(marks, terms.columns, ids=True)
        copy_terms = CopyTerms(
            *(terms.columns, terms.key, ("k", "v"), ("v",), (), ("v",), (), day, terms.recorded),
            ids=True,
            scope=scope,
            other_scopes=((("v", "e"),),),
            feed=FeedCopyTerms(terms, day, pa.concat_tables([others, own]), ("v",)),
        )
        plan = plan_rows(copy_terms, delivered, rows, lambda these: these)
        return {
            name: [each["k"] for each in plan.samples[name].to_pylist()]
            for name in plan.counts
            if name in COPY_FAULTS
        }

    scope = (("v", "u"),)
    assert faults([{"k": "k", "v": "u"}, {"k": "m", "v": "u"}], scope) == {CLAIMED: ["k"]}
    assert faults([{"k": "m", "v": "e"}, {"k": "n", "v": "u"}], scope) == {OUTSIDE_SCOPE: ["m"]}
    assert faults([{"k": "m", "v": "u"}, {"k": "m", "v": "u"}], scope) == {}
    assert faults([{"k": None, "v": "u"}], scope) == {NO_KEY: [None]}
    assert faults([{"k": "m", "v": "e"}, {"k": "m", "v": "u"}], (("k", "m"),)) == {DIFFERING: ["m"]}
