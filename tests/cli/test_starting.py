"""Progress is shown only to people, and does not change the output."""

import sys
from io import StringIO

import pytest

from backstory.cli.answers import show_activity
from backstory.cli.options import Options


class Terminal(StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("options", "shown"), [(Options(), True), (Options(quiet=True), False)])
def test_progress_on_a_terminal_does_not_change_standard_output(options, shown, monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with show_activity(options, "Reading ..."):
        sys.stdout.write("[]")
    assert capsys.readouterr().out == "[]"
    assert ("Reading ..." in terminal.getvalue()) == shown


def test_no_progress_is_shown_without_a_terminal(capsys):
    with show_activity(Options(), "Reading ..."):
        pass
    assert capsys.readouterr().err == ""
