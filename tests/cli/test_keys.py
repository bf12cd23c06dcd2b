"""Keys on the command line."""

import pytest

from backstory.cli.options import describe_key, parse_named_key
from backstory.errors import UsageError
from backstory.model.values import key_of_words


@pytest.mark.parametrize(
    ("names", "words", "key"),
    [
        (["id"], ["42"], "42"),
        (["id"], ["id=42"], {"id": "42"}),
        (["id"], ["aGk="], "aGk="),
        (["id"], ["x=1"], "x=1"),
        (["id"], ["id=x=1"], {"id": "x=1"}),
        (["a=b"], ["a=b=1"], {"a=b": "1"}),
        (["a", "b"], ["a=1", "b="], {"a": "1", "b": ""}),
        (["a", "b"], ["a=1"], {"a": "1"}),
        (["a", "b"], ["c=1", "b=2"], {"c": "1", "b": "2"}),
        (["a", "b"], ["1"], "1"),
    ],
)
def test_a_key_is_a_value_or_a_value_for_each_column(names, words, key):
    """The text before an equals sign is a column's name if the key has that column, otherwise part of the
    value."""
    assert key_of_words(names, tuple(words)) == key


@pytest.mark.parametrize(
    ("names", "words", "column"),
    [
        (["id"], ["id=1", "id=2"], "id"),
        (["a", "b"], ["b=1", "a=1", "b=1"], "b"),
        (["a=b"], ["a=b=1"] * 2, "a=b"),
    ],
)
def test_a_key_column_with_two_values_is_refused(names, words, column):
    """The last value would silently name another record, which `forget` would delete."""
    for read in (lambda words: key_of_words(names, words), lambda words: describe_key(names, words)):
        with pytest.raises(UsageError, match=f"two values for {column}") as refused:
            read(tuple(words))
        assert (refused.value.code, refused.value.remedy) == ("other-key", "Name one record at a time.")


def test_a_key_in_a_database_with_two_values_for_a_column_is_refused():
    with pytest.raises(UsageError, match="two values for id"):
        parse_named_key(("id=1", "id=2"))


@pytest.mark.parametrize(
    ("names", "words", "description"),
    [
        (["id"], ["42"], "id=42"),
        (["id"], ["id=42"], "id=42"),
        (["a", "b"], ["a=1", "b=2"], "a=1 b=2"),
    ],
)
def test_a_key_is_described_with_its_column_names(names, words, description):
    assert describe_key(names, tuple(words)) == description
