"""Any content of a feed becomes events or is refused."""

import json
from contextlib import suppress

import pyarrow as pa
from debezium_messages import ADA, BOB, INT, TYPES, message, sent, struct
from hypothesis import given
from hypothesis import strategies as st

from backstory.errors import Refused
from backstory.formats.envelopes.connect_types import envelope_type
from backstory.formats.envelopes.debezium import unwrap_debezium
from backstory.formats.envelopes.messages import debezium_messages, read_at_once
from backstory.formats.json.values import JsonColumn, loads, typed_array
from backstory.formats.options import JsonOptions

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["op", "c", "AA==", 2**62, 1e300, "\ud800"])
)
NAMES = st.text(max_size=2) | st.sampled_from(
    ["op", "after", "before", "source", "ts_ms", "id", "payload", "schema", "type", "name", "fields", "field"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
ORDINARY = [
    *(message(op, ADA, None if op == "d" else BOB) for op in "crudtm"),
    *(json.loads(sent({"v": values[0]}, struct(v=schema))) for schema, values, _, _ in TYPES.values()),
]


@st.composite
def messages(draw):
    """A message of a feed with changed, removed or added parts."""
    whole = json.loads(json.dumps(draw(st.sampled_from(ORDINARY))))
    for _ in range(draw(st.integers(0, 2))):
        place = whole
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and draw(st.booleans()):
                place = place[key]
                continue
            if isinstance(place, dict) and draw(st.booleans()):
                place.pop(key)
                place[draw(NAMES)] = draw(VALUES)
            else:
                place[key] = draw(VALUES)
            break
    return whole


@given(st.lists(messages() | VALUES, max_size=4), st.lists(VALUES, max_size=4) | st.none())
def test_a_feed_is_read_or_refused(feed, keys):
    """This holds for valid and invalid messages, in any order."""
    values = pa.array([json.dumps(each) for each in feed], pa.string())
    own = None
    if keys is not None:
        own = pa.array(
            [json.dumps(key) for key, _ in zip(keys + [None] * 4, feed, strict=False)], pa.string()
        )
    try:
        events = unwrap_debezium(debezium_messages(own, values), ["id"])
    except Refused:
        return
    count = len(events.kinds)
    assert len(events.instants) == len(events.has_before) == len(events.places) == count
    for part in (events.rows, events.sequence, events.unmodified, events.before):
        assert part is None or not part.column_names or part.num_rows == count
    assert events.places.to_pylist() == sorted(events.places.to_pylist())
    assert set(events.kinds.to_pylist()) <= {"upsert", "delete", "truncate"}


NUMBERS = st.sampled_from(
    ["1", "-0", "0.1", "1e5", "1E+400", "NaN", "-Infinity", "01", "1.", "2147483648", "9223372036854775808", "3.5e38", "16777217"]
)  # fmt: skip
TEXTS = (
    VALUES.map(json.dumps)
    | NUMBERS
    | st.sampled_from(
        ['{"a":1,"a":2}', '{"a":1} {"a":2}', '"\\ud800"', '"\\x41"', '"\t"', "", "\n", "//", '"\u2028"']
    )
)


@given(st.sampled_from([schema for schema, *_ in TYPES.values()]), st.lists(TEXTS, max_size=3), st.booleans())
def test_both_readers_give_the_same_values(schema, values, bare):
    """If the fast reader reads a text, the slow one agrees, for each type and for invalid texts."""
    wire = envelope_type(struct(v=schema, a=INT))
    texts = [value if bare else f'{{"v":{value}}}' for value in values]
    fast = read_at_once(texts, wire)
    if fast is not None:
        column = JsonColumn("The feed", str, JsonOptions(strict=True))
        assert fast.equals(typed_array([loads(text) for text in texts], pa.field("v", wire), column))


def test_the_fast_reader_reads_ordinary_messages():
    """It reads each type except maps, and numbers that JSON can express."""
    slow = [
        name
        for name, (schema, values, *_) in TYPES.items()
        if read_at_once([json.dumps({"v": value}) for value in values], envelope_type(struct(v=schema)))
        is None
    ]
    assert slow == ["float", "double", "Decimal as a number", "map"]


@given(st.lists(st.text() | st.binary(), max_size=3))
def test_a_text_is_read_or_refused(texts):
    """This holds for any characters and bytes."""
    raw = [each.encode(errors="surrogatepass") if isinstance(each, str) else each for each in texts]
    with suppress(Refused):
        assert debezium_messages(None, pa.array(raw, pa.binary())).num_rows == len(raw)
