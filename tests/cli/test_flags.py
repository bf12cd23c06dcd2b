"""The command line's names for options in errors."""

import pytest

from backstory.cli.options import parse_pairs
from backstory.cli.output import error_in_fields, error_in_flags, in_fields, in_flags
from backstory.errors import Refused, UsageError, option


@pytest.mark.parametrize(
    ("argument", "flag"),
    [
        (option("max_delete_ratio", 0.8), "`--max-delete-ratio 0.8`"),
        (option("allow_empty", value=True), "`--allow-empty`"),
        (option("key", ["a", "b"]), "`--key a,b`"),
        (option("rename", {"ort": "stadt"}), "`--rename ort=stadt`"),
        (option("retype", {"n": "DECIMAL(18,2)"}), "`--retype 'n=DECIMAL(18,2)'`"),
        (option("separator", ";"), "`--separator ';'`"),
        ("`at=TIME`", "`--at TIME`"),
        ("`at=`", "`--at`"),
        ("`backstory repair t`, `a = b`, x=1", "`backstory repair t`, `a = b`, x=1"),
    ],
)
def test_python_arguments_in_errors_become_flags(argument, flag):
    """An argument of Python is a flag of the command line, and other texts do not change."""
    assert in_flags(argument) == flag


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        (option("max_delete_ratio", 0.8), "`max_delete_ratio: 0.8`"),
        (option("allow_empty", value=True), "`allow_empty: true`"),
        (option("key", ["a", "b c"]), '`key: [a, "b c"]`'),
        (option("retype", {"n": "DECIMAL(18,2)", "m": "INT"}), '`retype: {n: "DECIMAL(18,2)", m: INT}`'),
        (option("separator", "no"), '`separator: "no"`'),
        ("`key=`", "`key:`"),
        (option("verbose", value=True), option("verbose", value=True)),
    ],
)
def test_python_arguments_in_errors_become_fields_of_a_file(argument, field):
    """The text in backticks, as YAML in the file, is the argument."""
    assert in_fields(argument, {"max_delete_ratio", "allow_empty", "key", "retype", "separator"}) == field


def test_errors_in_result_rows_name_flags():
    """Only errors are translated, not values of users."""
    error = Refused("c", "m", f"Pass {option('allow_empty', value=True)}.").to_dict()
    row = error_in_flags({"error": error, "note": "`dry_run=True`", "value": error})
    assert row == {
        "error": {**error, "remedy": "Pass `--allow-empty`."},
        "note": "`dry_run=True`",
        "value": error,
    }
    assert error_in_flags({"error": "`dry_run=True`"}) == {"error": "`dry_run=True`"}
    fields = error_in_fields({"error": error}, ["allow_empty"])
    assert fields["error"]["remedy"] == "Pass `allow_empty: true`."
    assert error_in_flags(fields) == fields


def test_a_name_with_two_values_is_refused():
    """The last value would silently replace the first, such as `--type id=INT --type id=STRING`."""
    for words in (("id=INT", "id=STRING"), ("id=INT,id=STRING",)):
        with pytest.raises(UsageError, match="--type has two values for id"):
            parse_pairs(words, "--type name=TYPE")
    assert parse_pairs(("id=INT", "id=INT"), "--type name=TYPE") == {"id": "INT"}
