"""The command `backstory`: one function for each command, errors as exit codes."""

import io
import os
import select
import sys
import traceback
from collections.abc import Callable, Sequence
from inspect import signature

from cyclopts import App, CycloptsError, Group

from backstory.cli import (
    apply,
    changes,
    check,
    datasets,
    demo,
    explore,
    fivetran,
    historize,
    projects,
    pull,
    read,
    snapshot,
    tables,
    upkeep,
)
from backstory.cli.output import Output, choose_output, show_error
from backstory.errors import BackstoryError, UsageError, internal_error
from backstory.spark.process import leave_pandas_out, raise_interrupts

DELIVER = Group("Deliver", sort_key=1)
READ = Group("Read", sort_key=2)
KEEP = Group("Keep", sort_key=3)
DATASETS = Group("Open Data Fabric datasets", sort_key=4)
HELP_OF_COMMANDS = "markdown"
ITSELF = Group("The command itself", sort_key=5)
HELP = "Every version of every record, on Spark."
# Its one line for each command needs no Markdown, which takes a third of the time that `--help` takes.
app = App(name="backstory", help=HELP, help_format="plaintext", result_action="return_value")
# In the order in which help tells them.
COMMANDS = {
    DELIVER: (
        projects.init,
        projects.run,
        snapshot.snapshot,
        apply.apply,
        historize.historize,
        fivetran.serve,
        fivetran.send,
        demo.demo,
    ),
    READ: (
        tables.tables,
        read.current,
        read.as_of,
        changes.diff,
        read.timeline,
        changes.changes,
        explore.explore,
        read.export,
        tables.views,
        read.log,
        tables.sql,
    ),
    KEEP: (
        projects.runs,
        projects.fresh,
        projects.schema,
        check.check,
        check.repair,
        check.adopt,
        upkeep.rewind,
        upkeep.forget,
        upkeep.maintain,
        upkeep.drop,
        upkeep.relocate,
        upkeep.doctor,
    ),
    DATASETS: (pull.add, pull.pull, pull.ingest, datasets.inspect, datasets.tail, datasets.verify),
}


def _usage_line(command: Callable[..., object]) -> str | None:
    """The line of usage of a command that may have fewer words than it names, which else were called ARGS."""
    given = [each for each in signature(command).parameters.values() if each.kind is not each.KEYWORD_ONLY]
    if all(each.kind is not each.VAR_POSITIONAL and each.default is each.empty for each in given):
        return None
    words = []
    for each in given:
        name = each.name.upper() + ("..." if each.kind is each.VAR_POSITIONAL else "")
        needed = each.default is each.empty and (each.kind is not each.VAR_POSITIONAL or each.name == "key")
        words.append(name if needed else f"[{name}]")
    return f"Usage: backstory {command.__name__} [OPTIONS] {' '.join(words)}"


for group, commands in COMMANDS.items():
    for place, command in enumerate(commands):
        usage = _usage_line(command)
        app.command(command, group=group, sort_key=place, help_format=HELP_OF_COMMANDS, usage=usage)
app.command(
    datasets.list_,
    name="list",
    group=DATASETS,
    sort_key=len(COMMANDS[DATASETS]),
    help_format=HELP_OF_COMMANDS,
)
app.register_install_completion_command(
    "--install-completion", group=ITSELF, help="Complete commands and options in this shell, from now on."
)
for flag in (*app.help_flags, *app.version_flags):
    app[flag].group = ITSELF


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code: see `backstory.errors`."""
    leave_pandas_out()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name may have bytes that are no text
        sys.stdout.reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(given))


def run(arguments: list[str]) -> int:
    """The exit code of the command line."""
    try:
        if arguments[:1] == ["serve"] and not {"--help", "-h"} & set(arguments):
            return _serve(arguments)
        with raise_interrupts():
            ended = app(arguments, exit_on_error=False, print_error=False)
            sys.stdout.flush()
    except CycloptsError as wrong:
        wrong.verbose = False
        told = UsageError("usage", str(wrong), f"See `{_help_command(arguments)}`.")
        show_error(told, "json" if _output_word(arguments) == "json" else "table")
        return told.exit_code
    except KeyboardInterrupt:
        return 130
    except BackstoryError as error:
        show_error(error, _output(arguments))
        _print_trace(arguments)
        return error.exit_code
    except Exception as bug:
        return _report_bug(bug, arguments)
    return ended if isinstance(ended, int) else 0


def _report_bug(bug: Exception, arguments: list[str]) -> int:
    """Tell of a bug; a reader of standard output that has what it wanted, as `head` has, is none."""
    if isinstance(bug, BrokenPipeError) and _is_closed(sys.stdout.fileno()):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    error = internal_error(bug)
    show_error(error, _output(arguments))
    _print_trace(arguments)
    return error.exit_code


def _is_closed(descriptor: int) -> bool:
    asked = select.poll()
    asked.register(descriptor, select.POLLOUT)
    return any(event & select.POLLERR for _, event in asked.poll(0))


def _serve(arguments: list[str]) -> int:
    """Serve; arguments that nobody knows are passed over with a warning (section 7.1)."""
    command, bound, unknown, _ = app.parse_known_args(arguments)
    return fivetran.run(lambda: command(*bound.args, **bound.kwargs, unknown=unknown))


def _output(arguments: Sequence[str]) -> Output:
    """The output asked for, known also when the command did not come to its options."""
    asked = _output_word(arguments)
    return choose_output("json" if asked == "json" else "table" if asked else None)


def _output_word(arguments: Sequence[str]) -> str:
    """The word behind `--output`; empty if there is none."""
    words = " ".join(arguments).replace("--output=", "--output ").split(" ")
    return next(iter(words[words.index("--output") + 1 :]), "") if "--output" in words else ""


def _help_command(arguments: Sequence[str]) -> str:
    """The command that helps with these arguments."""
    known = arguments[:1] and arguments[0] in set(app) and not arguments[0].startswith("-")
    return f"backstory {arguments[0]} --help" if known else "backstory --help"


def _print_trace(arguments: Sequence[str]) -> None:
    if {"--verbose", "-v"} & set(arguments):
        traceback.print_exc()
