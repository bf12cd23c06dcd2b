"""The equality of two values (native.md V16), and lists in one string."""

import pytest

from backstory.model.values import comparison_key, split_list

NAN = float("nan")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (NAN, float("nan"), True),
        (0.0, -0.0, True),
        ([{"a": NAN}, 0.0], [{"a": NAN}, -0.0], True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        (None, NAN, False),
        (NAN, "nan", False),
        ([1, 2], [2, 1], False),
        ({"a": None}, {}, False),
    ],
)
def test_values_are_compared_by_meaning(one, other, same):
    """NaN equals NaN, both zeros are equal, maps have no order, and NULL equals only NULL."""
    assert (comparison_key(one) == comparison_key(other)) is same


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("id, name,", ["id", "name"]),
        ("coalesce(ts, to_timestamp(x)), lsn", ["coalesce(ts, to_timestamp(x))", "lsn"]),
        ("f(g(a, b), c), d, h(e, (f))", ["f(g(a, b), c)", "d", "h(e, (f))"]),
        ("split(x, 'a,(b')[0], y", ["split(x, 'a,(b')[0]", "y"]),
        ("""x = 'it\\'s, ', "a,b", `c,d`, e""", ["""x = 'it\\'s, '""", '"a,b"', "`c,d`", "e"]),
        ("it's, bob's", ["it's", "bob's"]),
        ("a(b, f(c, d), e", ["a(b", "f(c, d)", "e"]),
    ],
)
def test_lists_are_split_at_commas_outside_parentheses_and_quotes(text, parts):
    """A comma within a call, a string or a quoted name separates nothing."""
    assert split_list(text) == parts
