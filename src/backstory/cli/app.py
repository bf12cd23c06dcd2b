"""The command `backstory`: one function for each command, errors as exit codes."""

import sys
import traceback
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group

from backstory.cli import (
    add,
    check,
    datasets,
    demo,
    diff,
    historize,
    keeping,
    pull,
    read,
    send,
    serve,
    snapshot,
    sql,
)
from backstory.cli.output import Output, chosen, errors, show_error
from backstory.errors import BackstoryError, Failed

DATASETS = Group("Open Data Fabric datasets")
app = App(
    name="backstory",
    help="Every version of every record, on Spark.",
    result_action="return_value",
)
app.command(demo.demo)
app.command(serve.serve)
app.command(send.send)
app.command(historize.historize)
app.command(snapshot.snapshot)
app.command(read.tables)
app.command(read.current)
app.command(read.as_of)
app.command(diff.diff)
app.command(read.timeline)
app.command(read.log)
app.command(check.check)
app.command(sql.sql)
app.command(keeping.rewind)
for command in (add.add, pull.pull, pull.ingest, datasets.inspect, datasets.tail, datasets.verify):
    app.command(command, group=DATASETS)
app.command(datasets.list_, name="list", group=DATASETS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code: see `backstory.errors`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(given))


def run(arguments: list[str]) -> int:
    """The exit code of the command line."""
    try:
        if arguments[:1] == ["serve"] and not {"--help", "-h"} & set(arguments):
            return _serve(arguments)
        ended = app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as wrong:
        wrong.verbose = False
        errors.print(f"usage: {wrong}", markup=False)
        errors.print("  See `backstory --help`.", markup=False)
        return 2
    except KeyboardInterrupt:
        return 130
    except BackstoryError as error:
        show_error(error, _output(arguments))
        _trace(arguments)
        return error.exit_code
    except Exception as bug:
        show_error(_as_failure(bug), _output(arguments))
        _trace(arguments)
        return 1
    return ended if isinstance(ended, int) else 0


def _serve(arguments: list[str]) -> int:
    """Serve; arguments that nobody knows are passed over with a warning (section 7.1)."""
    command, bound, unknown, _ = app.parse_known_args(arguments)
    return serve.run(lambda: command(*bound.args, **bound.kwargs, unknown=unknown))


def _output(arguments: Sequence[str]) -> Output:
    """The output asked for, known also when the command did not come to its options."""
    words = " ".join(arguments).replace("--output=", "--output ").split(" ")
    asked = words[words.index("--output") + 1 :][:1] if "--output" in words else []
    return chosen("json" if asked == ["json"] else "table" if asked else None)


def _as_failure(bug: Exception) -> Failed:
    return Failed(
        "bug",
        f"An internal error: {type(bug).__name__}: {bug}",
        "Run it again with --verbose and report what it shows.",
    )


def _trace(arguments: Sequence[str]) -> None:
    if {"--verbose", "-v"} & set(arguments):
        traceback.print_exc()
