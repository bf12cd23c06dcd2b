"""The command `backstory`: its commands in their groups, and the exit codes of its errors."""

import io
import os
import select
import sys
import traceback
from collections.abc import Callable, Sequence
from inspect import signature

from cyclopts import App, CycloptsError, Group

from backstory.cli import changes, datasets, demo, fivetran, projects, pull, read, snapshot, upkeep
from backstory.cli.output import Output, choose_output, show_error
from backstory.errors import BackstoryError, UsageError, internal_error
from backstory.spark.process import leave_pandas_out, raise_interrupts

DELIVER = Group("Deliver", sort_key=1)
READ = Group("Read", sort_key=2)
KEEP = Group("Keep", sort_key=3)
DATASETS = Group("Open Data Fabric datasets", sort_key=4)
HELP_OF_COMMANDS = "markdown"
OF_THE_COMMAND = Group("The command itself", sort_key=5)
HELP = "Every version of every record, on Spark."
# The list of commands needs no Markdown, which would take a third of the time of `--help`.
app = App(name="backstory", help=HELP, help_format="plaintext", result_action="return_value")
# The commands, in the order of `--help`.
COMMANDS = {
    DELIVER: (
        projects.init,
        projects.run,
        snapshot.snapshot,
        snapshot.apply,
        snapshot.historize,
        fivetran.serve,
        fivetran.send,
        demo.demo,
    ),
    READ: (
        read.tables,
        read.current,
        read.as_of,
        changes.diff,
        read.timeline,
        changes.changes,
        read.explore,
        read.export,
        read.views,
        read.log,
        read.sql,
    ),
    KEEP: (
        projects.runs,
        projects.fresh,
        projects.schema,
        upkeep.check,
        upkeep.repair,
        upkeep.adopt,
        upkeep.rewind,
        upkeep.forget,
        upkeep.maintain,
        upkeep.drop,
        upkeep.publish,
        upkeep.relocate,
        upkeep.doctor,
    ),
    DATASETS: (pull.add, pull.pull, pull.ingest, datasets.inspect, datasets.tail, datasets.verify),
}


def _usage_line(command: Callable[..., object]) -> str | None:
    """The usage line of a command with optional words, which cyclopts would call ARGS.

    Returns None for other commands.
    """
    words, simple = [], True
    for parameter in signature(command).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            continue
        several, required = parameter.kind is parameter.VAR_POSITIONAL, parameter.default is parameter.empty
        simple &= required and not several
        name = parameter.name.upper() + ("..." if several else "")
        words.append(name if required and (not several or parameter.name == "key") else f"[{name}]")
    return None if simple else f"Usage: backstory {command.__name__} [OPTIONS] {' '.join(words)}"


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
    "--install-completion",
    group=OF_THE_COMMAND,
    help="Install completion of commands and options in this shell.",
)
for flag in (*app.help_flags, *app.version_flags):
    app[flag].group = OF_THE_COMMAND


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code, as listed in `backstory.errors`."""
    leave_pandas_out()
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names may contain bytes that are not text
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run the command line and return its exit code."""
    try:
        if arguments[:1] == ["serve"] and not {"--help", "-h"} & set(arguments):
            # `serve` ignores unknown arguments with a warning (section 7.1).
            command, bound, unknown, _ = app.parse_known_args(arguments)
            return fivetran.run(lambda: command(*bound.args, **bound.kwargs, unknown=unknown))
        with raise_interrupts():
            code = app(arguments, exit_on_error=False, print_error=False)
            sys.stdout.flush()
    except CycloptsError as wrong:
        wrong.verbose = False
        usage_error = UsageError("usage", str(wrong), f"See `{_help_command(arguments)}`.")
        show_error(usage_error, "json" if _output_word(arguments) == "json" else "table")
        return usage_error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as stop:
        # A reader that closed the pipe, such as `head`, is not a bug.
        if isinstance(stop, BrokenPipeError) and _is_closed(sys.stdout.fileno()):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        error = stop if isinstance(stop, BackstoryError) else internal_error(stop)
        show_error(error, _output(arguments))
        if {"--verbose", "-v"} & set(arguments):
            traceback.print_exc()
        return error.exit_code
    return code if isinstance(code, int) else 0


def _is_closed(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _output(arguments: Sequence[str]) -> Output:
    """The output format for errors, read from the arguments, which the command may not have parsed yet."""
    word = _output_word(arguments)
    return choose_output("json" if word == "json" else "table" if word else None)


def _output_word(arguments: Sequence[str]) -> str:
    """The value of the option `--output`, or an empty string."""
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name == "--output":
            return value if equals else following
    return ""


def _help_command(arguments: Sequence[str]) -> str:
    """The command that prints help for these arguments."""
    known = arguments[:1] and arguments[0] in set(app) and not arguments[0].startswith("-")
    return f"backstory {arguments[0]} --help" if known else "backstory --help"
