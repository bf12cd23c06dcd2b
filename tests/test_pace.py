"""Long test files are listed with reasons."""

import re
from pathlib import Path

from pace import LIMIT, LISTED, table

ROOT = Path(__file__).parents[1]
SECONDS, REASONS = (table()[name] for name in ("seconds", "reasons"))


def test_listed_test_files_exist():
    assert [file for file in sorted(SECONDS | REASONS) if not (ROOT / file).is_file()] == []


def test_every_slow_test_file_has_a_reason():
    """A long file must be listed. `make test` prints the seconds of each file."""
    assert {file for file, seconds in SECONDS.items() if seconds > LIMIT} == set(REASONS)


def test_listed_slow_tests_exist():
    for test in LISTED:
        file, *_, name = test.split("::")
        text = (ROOT / file).read_text("utf-8")
        assert re.search(rf"^ *def {name}\(", text, re.MULTILINE), test
