"""The progress of a dataset's delivery, as a line on a terminal."""

from typing import Final

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

# The stages of a dataset in their order (section 4.2). Stages without work are skipped.
STAGES: Final = (
    "Checking for updates",
    "Downloading data",
    "Preparing data",
    "Reading data",
    "Preprocessing data",
    "Merging data",
    "Committing data",
)


class ProgressLine:
    """A line with stage and bytes, shown from `begin` to `end`. Without a terminal, nothing is shown."""

    def __init__(self, terminal: Console | None) -> None:
        self._terminal = terminal
        self._drawn: Progress | None = None
        self._task = TaskID(0)
        self._dataset, self._stage = "", ""

    def begin(self, dataset: str) -> None:
        """Start the line for a dataset."""
        self.end()
        self._dataset, self._stage = dataset, ""
        if self._terminal is not None:
            self._drawn = Progress(*_columns(), console=self._terminal, transient=True)
            self._drawn.start()
            self.tell(STAGES[0], 0, None)

    def tell(self, stage: str, done: int, total: int | None) -> None:
        """Show the stage, its bytes so far, and the total bytes if they are known."""
        if self._drawn is None:
            return
        if stage != self._stage:
            for task in self._drawn.task_ids:
                self._drawn.remove_task(task)
            self._stage = stage
            number = STAGES.index(stage) + 1 if stage in STAGES else "–"
            self._task = self._drawn.add_task(
                f"\\[{number}/{len(STAGES)}] {stage}", total=None, dataset=self._dataset
            )
        self._drawn.update(self._task, completed=done, total=total)

    def end(self) -> None:
        """Remove the line."""
        if self._drawn is not None:
            self._drawn.stop()
        self._drawn = None


class _Bytes(ProgressColumn):
    """The bytes so far, and the total if it is known. Nothing is shown before the first byte."""

    def render(self, task: Task) -> Text:
        if not task.completed:
            return Text()
        so_far = decimal(int(task.completed))
        return Text(f"{so_far} of {decimal(int(task.total))}" if task.total else so_far)


class _IfLengthKnown(ProgressColumn):
    """A column that is shown only while the total is known."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: Task) -> object:  # type: ignore[override]
        return self._column(task) if task.total else Text()


def _columns() -> list[ProgressColumn]:
    known = (BarColumn(bar_width=24), TransferSpeedColumn(), TimeRemainingColumn(compact=True))
    bar, *more = (_IfLengthKnown(column) for column in known)
    words = TextColumn("{task.fields[dataset]} {task.description}")
    return [SpinnerColumn(), words, bar, _Bytes(), *more]
