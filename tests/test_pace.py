"""Long files of tests are known, and say why."""

import re
from pathlib import Path

import pytest
from pace import LIMIT, LISTED, table

ROOT = Path(__file__).parents[1]
SECONDS, REASONS = (table()[name] for name in ("seconds", "reasons"))


@pytest.mark.parametrize("file", sorted(SECONDS | REASONS))
def test_a_file_that_is_told_of_is_there(file):
    assert (ROOT / file).is_file()


def test_a_file_that_takes_long_names_its_reason():
    """So that none grows unseen: `make test` prints the seconds of each."""
    assert {file for file, seconds in SECONDS.items() if seconds > LIMIT} == set(REASONS)


@pytest.mark.parametrize("test", sorted(LISTED))
def test_a_long_test_is_there(test):
    file, *_, name = test.split("::")
    assert re.search(rf"^ *def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
