"""Long test files are listed with reasons."""

import re
from pathlib import Path

from pace import LIMIT, LISTED, table

ROOT = Path(__file__).parents[1]
SECONDS, REASONS = (table()[name] for name in ("seconds", "reasons"))


def test_files_that_are_told_of_are_there():
    assert [file for file in sorted(SECONDS | REASONS) if not (ROOT / file).is_file()] == []


def test_a_file_that_takes_long_names_its_reason():
    """A long file must be listed. `make test` prints the seconds of each file."""
    assert {file for file, seconds in SECONDS.items() if seconds > LIMIT} == set(REASONS)


def test_long_tests_are_there():
    for test in LISTED:
        file, *_, name = test.split("::")
        text = (ROOT / file).read_text("utf-8")
        assert re.search(rf"^ *def {name}\(", text, re.MULTILINE), test
