"""What people see of a run while it goes on: how many declarations have ended, and which ones run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final

from backstory.cli.options import Options
from backstory.cli.output import errors

if TYPE_CHECKING:
    from backstory.projects.declarations import Declaration
    from backstory.projects.receipts import RunReceipt
    from backstory.projects.running import RunWatcher

SHOWN: Final = 4  # names that run at the moment


@contextmanager
def watching(options: Options) -> Iterator["RunWatcher"]:
    """A watcher that draws a line on a terminal while it lasts; one that does nothing elsewhere."""
    from backstory.projects.running import RunWatcher

    if options.quiet or options.verbose or not errors.is_terminal:
        yield RunWatcher()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    words = TextColumn("{task.fields[rows]:,} rows changed  {task.fields[names]}")
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), words)
    with Progress(*columns, console=errors, transient=True, redirect_stdout=False) as drawn:
        task, running, lock, rows = drawn.add_task("", total=None, rows=0, names=""), list[str](), Lock(), [0]

        def draw(advance: int = 0) -> None:
            names = ", ".join(running[:SHOWN]) + (" ..." if len(running) > SHOWN else "")
            drawn.update(task, advance=advance, rows=rows[0], names=names)

        def selected(declarations: "Sequence[Declaration]") -> None:
            drawn.update(task, total=len(declarations))

        def begun(name: str) -> None:
            with lock:
                running.append(name)
                draw()

        def ended(receipt: "RunReceipt") -> None:
            with lock:
                running[:] = [each for each in running if each != receipt.name]
                rows[0] += sum(count for name, count in receipt.counts.items() if name != "unchanged")
                draw(advance=1)

        yield RunWatcher(selected, begun, ended)
