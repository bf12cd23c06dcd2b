"""`scripts/test.sh` repeats failed files by themselves, and names the tests that then pass."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import os
from pathlib import Path

import pytest

def first(name):
    \"\"\"Whether it is the first time, by a file that stays.\"\"\"
    mark = Path(__file__).with_name(name)
    return not mark.exists() and not mark.write_text("")

def test_steady():
    pass

def test_fails_once():
    assert not first("once")

@pytest.fixture
def resource():
    yield
    assert not first("left")

def test_leaves_once(resource):
    pass
"""
CRASHES = """
def test_crashes_once():
    if first("crash"):
        os._exit(9)
"""
FAILS = """
def test_fails():
    assert False
"""
WORSE = """
def test_passes_once():
    assert first("passed")

def test_fails_first():
    assert not first("failed")
"""


def tried(folder, text, **more):
    """The exit code, the flaky names, and the output of the runner on two test files."""
    (folder / "conftest.py").write_text('pytest_plugins = ["second_try"]\n')
    (folder / "test_one.py").write_text(text)
    (folder / "test_other.py").write_text("def test_other():\n    pass\n")
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    words = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [ROOT / "scripts" / "test.sh", *words, str(folder)],
        env=own | {"BACKSTORY_WORKERS": "2"} | more,
        capture_output=True,
        text=True,
    )
    _, heading, block = done.stdout.partition("FLAKY")
    flaky = {line.partition("::")[2] for line in block.splitlines() if "::" in line} if heading else set()
    return done.returncode, flaky, done.stdout + done.stderr


@pytest.mark.process
def test_flaky_tests_are_named_and_do_not_fail_the_run(tmp_path):
    """This includes a failed clean-up and a crashed process. Files that passed do not run again."""
    code, flaky, output = tried(tmp_path, TESTS + CRASHES)
    assert (code, flaky) == (0, {"test_fails_once", "test_leaves_once", "test_crashes_once"}), output
    again = output.partition("once more, one after the other")[2]
    assert "4 passed, 1 deselected" in again, output
    assert output.rstrip().endswith("!" * 100), output


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FAILS + TESTS + WORSE, {"test_fails_once", "test_leaves_once", "test_fails_first"}),
        ("import nothing_of_this_name\n", set()),
    ],
    ids=["always and on the second try only", "collected never"],
)
def test_a_test_that_fails_on_the_second_try_fails_the_run(tmp_path, text, expected):
    """The same holds for a file that cannot be collected, after which no other file is repeated."""
    code, flaky, output = tried(tmp_path, text)
    assert (code != 0, flaky) == (True, expected), output


@pytest.mark.process
def test_a_run_without_failures_has_one_try(tmp_path):
    code, flaky, output = tried(tmp_path, "def test_steady():\n    pass\n")
    assert (code, flaky, "once more" in output) == (0, set(), False), output
