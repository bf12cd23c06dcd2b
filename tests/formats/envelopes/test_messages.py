"""Texts of messages become columns of their schemas' types exactly, or are refused (V61, V63)."""

import json
import re
from decimal import Context, Decimal

import pyarrow as pa
import pytest
from debezium_messages import BYTES, CONNECT, INT, LONG, TEXT, TYPES, b64, decimal, field, sent, struct
from hypothesis import given
from hypothesis import strategies as st

from backstory.errors import Refused
from backstory.formats.envelopes import messages
from backstory.formats.envelopes.messages import debezium_lines, debezium_messages


def read(*texts, **options):
    return debezium_messages(None, pa.array(texts, pa.string()), **options)


def cells(schema, *values):
    """The type of a column with this schema, and its values."""
    table = read(*(sent({"v": value}, struct(v=schema)) for value in values))
    column = table["after"].combine_chunks().field("v")
    return str(column.type), column.to_pylist()


@pytest.mark.parametrize("name", TYPES)
def test_each_logical_type_is_read_exactly(name):
    """This covers each logical type, and NULL."""
    schema, values, type_, expected = TYPES[name]
    assert cells(schema, *values, None) == (type_, [*expected, None])


@given(st.integers(1, 38).flatmap(lambda digits: st.tuples(st.just(digits), st.integers(0, digits), st.lists(st.integers(1 - 10**digits, 10**digits - 1), min_size=1), st.integers(0, 4))))  # fmt: skip
def test_decimals_are_read_as_java_wrote_them(case):
    """This covers every precision and scale, whatever the number of sign bytes."""
    precision, scale, numbers, more = case
    texts = [b64(number, (number.bit_length() + 8) // 8 + more) for number in numbers]
    exact = Context(prec=80)
    assert cells(decimal(scale, precision), *texts) == (
        f"decimal128({precision}, {scale})",
        [exact.scaleb(Decimal(number), -scale) for number in numbers],
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([{"x": None, "y": 1}], [{"x": None, "y": 2}, {"x": None, "y": 3}]),
        ([None], [None, None]),
    ],
)
def test_lists_of_nulls_without_a_schema_are_read(one, other):
    """V61: The messages have no schema, so the type of the items is unknown."""
    table = read(*(json.dumps({"op": "c", "after": {"id": 1, "v": value}}) for value in (one, other)))
    assert table["after"].combine_chunks().field("v").to_pylist() == [one, other]


UNREADABLE = {
    "an integer that is a text": (INT, "x", "unreadable-value"),
    "an integer beyond 32 bits": (INT, 2**31, "unreadable-value"),
    "an integer beyond 64 bits": (LONG, 2**63, "unreadable-value"),
    "a float where an integer is": (LONG, 1.5, "unreadable-value"),
    "a number beyond a double": (field("double"), "1e999", "unreadable-value"),
    "an object where a text is not": (INT, {"a": 1}, "unreadable-value"),
    "a list where an object is": (struct(a=INT), [1], "unreadable-value"),
    "text that is not base64": (BYTES, "AP8", "unreadable-value"),
    "a day of the year 10000": (field("int32", "io.debezium.time.Date"), 2932897, "unreadable-value"),
    "PostgreSQL's infinity": (field("int64", "io.debezium.time.MicroTimestamp"), 9223372036825200000, "unreadable-value"),
    "milliseconds beyond 64 bits": (field("int64", "io.debezium.time.Timestamp"), 2**62, "unreadable-value"),
    "an instant that is no time": (field("string", "io.debezium.time.ZonedTimestamp"), "infinity", "unreadable-value"),
    "a decimal with more digits": (decimal(0, 2), b64(100), "unreadable-value"),
    "a decimal beyond 38 digits": (decimal(0), b64(10**38), "unreadable-value"),
    "a decimal of 17 bytes": (decimal(0), b64(2**130), "unreadable-value"),
    "a decimal without a byte": (decimal(0), "", "unreadable-value"),
    "a scale beyond reason": ({**struct(scale=INT, value=BYTES), "name": "io.debezium.data.VariableScaleDecimal"}, {"scale": 2**31 - 1, "value": "AQ=="}, "unreadable-value"),
    "an item of a list": ({"type": "array", "items": BYTES}, ["AA==", "?"], "unreadable-value"),
    "a field that the schema does not have": (struct(a=INT), {"a": 1, "b": 2}, "unknown-fields"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_value_of_another_type_than_its_schema_is_refused(name):
    """The error contains the number of the message, whatever is around the value."""
    schema, value, code = UNREADABLE[name]
    text = sent({"v": value}, struct(v=schema)).replace('"1e999"', "1e999")
    good = sent({"v": None}, struct(v=schema))
    with pytest.raises(Refused, match="message 3") as stop:
        read(good, None, text, good)
    assert stop.value.code == code
    assert "schema` in `read" not in stop.value.remedy


SCHEMAS = {
    "an unknown type": {"type": "decimal"},
    "no type": {},
    "a list of a name": {"type": "array", "items": "int32"},
    "a struct without fields": {"type": "struct"},
    "a field without a name": {"type": "struct", "fields": [INT]},
    "a field twice": {"type": "struct", "fields": [{**INT, "field": "a"}, {**LONG, "field": "a"}]},
    "a list of nothing": {"type": "array"},
    "a map by numbers": {"type": "map", "keys": INT, "values": TEXT},
    "a scale that is no number": field("bytes", f"{CONNECT}Decimal", scale="two"),
    "a scale beyond 38": field("bytes", f"{CONNECT}Decimal", scale="39"),
    "a logical type of another type": field("string", "io.debezium.time.Date"),
    "a decimal that is a number": field("double", "io.debezium.data.VariableScaleDecimal"),
    "a deep one": json.loads('{"type":"array","items":' * 30 + "{}" + "}" * 30),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_that_cannot_be_read_is_refused(name):
    """The error contains the number of the first message with it."""
    with pytest.raises(Refused, match="message 2") as stop:
        read(None, sent({"v": None}, struct(v=SCHEMAS[name])))
    assert stop.value.code == "malformed-row"
    assert "schema" in stop.value.message


def test_decimals_in_two_encodings_are_refused():
    """`1234` is a number, and also the base64 of another one."""
    with pytest.raises(Refused, match="two ways"):
        cells(decimal(0, 9), 1234, "1234")


TEXTS = {
    "no JSON": ("{", "it is not JSON"),
    "two values": ("{} {}", "it is not JSON"),
    "a plain text": ("customer-1", "it is not JSON"),
    "a value with a schema's id": ("\0\0\0\0\1{}", "it is not JSON"),
    "a name twice": ('{"op": "c", "op": "d"}', "`op` twice"),
    "a name twice within": ('{"op": "c", "after": {"a": 1, "a": 2}}', "`a` twice"),
    "NaN": ('{"op": "c", "after": {"a": NaN}}', "not a JSON number"),
    "half a letter as a name": ('{"op": "c", "after": {"\\ud800": 1}}', "not valid Unicode"),
    "no object": ("[1]", "it is not an object"),
    "a number": ("1", "it is not an object"),
    "an object with nothing": ("{}", "it has no `op`"),
    "an object with NULL alone": ('{"op": null, "after": null}', "it has no `op`"),
    "a deep one": ('{"op":' + "[" * 100 + "]" * 100 + "}", "deep"),
    "a very deep one": ("[" * 100_000, "deep"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_an_invalid_message_is_refused(name):
    """The error contains the number and the fault."""
    text, words = TEXTS[name]
    with pytest.raises(Refused, match=re.escape(words)) as stop:
        read(sent({"a": 1}), text)
    assert stop.value.code == "malformed-row"
    assert "message 2" in stop.value.message


def test_messages_outside_utf8_are_refused():
    """Kafka's values are bytes."""
    good, bad = sent({"a": 1}).encode(), b'{"op": "\xff"}'
    assert debezium_messages(None, pa.array([good, None])).num_rows == 2
    with pytest.raises(Refused, match="message 2: its text is not UTF-8"):
        debezium_messages(None, pa.array([good, bad]))


def test_half_a_surrogate_pair_is_refused():
    """Arrow's texts must be valid Unicode."""
    with pytest.raises(Refused, match="message 1"):
        read('{"op": "c", "after": {"a": "\\ud800"}}')


WITHOUT_SCHEMA = [
    ([1, 2**53], "int64"),
    ([2**63 - 1], "int64"),
    ([0.1, 2], "double"),
    (["a"], "string"),
    ([True], "bool"),
    ([{"a": [1]}], "struct<a: list<item: int64>>"),
    ([None], "null"),
]


@pytest.mark.parametrize(("values", "type_"), WITHOUT_SCHEMA)
def test_messages_without_a_schema_have_json_types(values, type_):
    """Numbers are read without loss."""
    column = read(*(sent({"v": value}) for value in values))["after"].combine_chunks().field("v")
    assert (str(column.type), column.to_pylist()) == (type_, values)


@pytest.mark.parametrize(
    "values",
    [["1e999"], [str(2**63)], ["12345678901234567890.5"], [str(2**53 + 1), "0.5"], ["1", '"1"'], ["{}", "1"]],
)
def test_numbers_without_a_schema_are_exact_or_refused(values):
    """Numbers beyond floats and 64 bits, and values without a common type, are refused."""
    with pytest.raises(Refused) as stop:
        read(*(f'{{"op": "c", "after": {{"v": {value}}}}}' for value in values))
    assert stop.value.code == "mixed-types"
    assert "payload" not in stop.value.remedy


def test_messages_before_and_after_a_new_column_share_a_table():
    """The column is unmodified in earlier messages, and a larger integer has 64 bits."""
    table = read(
        sent({"id": 1, "n": 1}, struct(id=INT, n=INT)),
        sent({"id": 1, "n": 2**40, "new": "x"}, struct(id=INT, n=LONG, new=TEXT)),
    )
    assert table["after"].to_pylist() == [{"id": 1, "n": 1, "new": None}, {"id": 1, "n": 2**40, "new": "x"}]
    assert table["unmodified"].to_pylist() == [{"new": True}, {"new": False}]


@pytest.mark.parametrize(
    ("one", "other", "types"),
    [
        (INT, TEXT, ("INT", "STRING")),
        (BYTES, TEXT, ("BINARY", "STRING")),
        (decimal(2, 9), decimal(3, 9), ("DECIMAL(9,2)", "DECIMAL(9,3)")),
        (TEXT, field("int32", "io.debezium.time.Date"), ("STRING", "DATE")),
    ],
)
def test_types_that_contradict_each_other_are_refused(one, other, types):
    """The error contains the column's name and both types."""
    words = "`payload.after.v` has type {} in some messages and {} in others".format(*types)
    with pytest.raises(Refused, match=re.escape(words)) as stop:
        read(sent({"v": None}, struct(v=one)), sent({"v": None}, struct(v=other)))
    assert stop.value.code == "mixed-types"


def test_messages_with_and_without_a_schema_are_one_feed():
    """If their types differ, the feed is refused."""
    table = read(sent({"v": "a"}, struct(v=TEXT)), sent({"v": "b"}), sent({"v": "c"}, struct(v=TEXT)))
    assert [row["v"] for row in table["after"].to_pylist()] == ["a", "b", "c"]
    with pytest.raises(Refused, match=re.escape("`payload.after.v`")) as stop:
        read(sent({"v": "a"}, struct(v=TEXT)), sent({"v": 1}))
    assert stop.value.code == "mixed-types"


def test_keys_are_read_like_values():
    """This holds with and without a schema. Without a key, it is NULL."""
    with_schema = json.dumps({"schema": struct(id=decimal(0, 9)), "payload": {"id": b64(7)}})
    keys = pa.array([with_schema, None, with_schema], pa.string())
    table = debezium_messages(keys, pa.array([None, None, sent({"a": 1})], pa.string()))
    assert table["key"].to_pylist() == [{"id": Decimal(7)}, None, {"id": Decimal(7)}]
    assert debezium_messages(pa.array(['{"id": 7}']), pa.array([None], pa.string()))["key"].to_pylist() == [
        {"id": 7}
    ]


@pytest.mark.parametrize("key", ["customer-1", "7", '{"schema": {"type": "int32"}, "payload": 7}'])
def test_a_key_other_than_an_object_is_refused(key):
    """The column of such a key is unknown."""
    with pytest.raises(Refused, match="keys, message 1"):
        debezium_messages(pa.array([key]), pa.array([sent({"a": 1})]))


def test_a_schema_is_read_once(monkeypatch):
    """A schema may be a hundred times longer than its payload, so a repeated one is not parsed again."""
    schema = struct(**{f"column_{number}": TEXT for number in range(1_000)})
    same = [sent({"column_1": str(number)}, schema) for number in range(40)]
    others = [text.replace("column_0", f"other_{number}") for number, text in enumerate(same)]

    def letters(texts):
        """The number of parsed characters."""
        parsed, loads = [], messages.loads
        with monkeypatch.context() as watched:
            watched.setattr(messages, "loads", lambda text: parsed.append(len(text)) or loads(text))
            assert sum(len(group.rows) for group in messages.payloads(pa.array(texts), "The feed")) == 40
        return sum(parsed)

    assert letters(same) < 3 * len(same[0])
    assert letters(others) >= sum(map(len, others))


@pytest.mark.parametrize("more", [', "payload": {}}', "} {", "}}"])
def test_a_repeated_schema_hides_no_broken_message(more):
    """The text after the payload is still read."""
    text = sent({"v": "a"}, struct(v=TEXT))
    with pytest.raises(Refused, match="message 2"):
        read(text, text[:-1] + more)


def test_a_file_has_a_message_on_each_line(tmp_path):
    """Errors contain the file and the message's number, which is its line. Empty lines count as messages."""
    path = tmp_path / "feed.jsonl"
    path.write_text(f"{sent({'a': 1})}\n\nnull\n{sent({'a': 2})}\n", "utf-8")
    assert [row and row["a"] for row in debezium_lines(path)["after"].to_pylist()] == [1, None, None, 2]
    path.write_text(f"{sent({'a': 1})}\n\n{{", "utf-8")
    with pytest.raises(Refused, match=re.escape("feed.jsonl, message 3")):
        debezium_lines(path)
