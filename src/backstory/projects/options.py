"""The options of `run`, for Python calls and for the command, and callbacks for a run's progress."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import field, frozen

from backstory.doors.native.options import OnSchemaChange
from backstory.engine.run_context import Remark
from backstory.errors import bad_option

if TYPE_CHECKING:
    from backstory.projects.declarations import Declaration
    from backstory.projects.log import RunReceipt


def _words(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


@frozen(kw_only=True)
class RunRequest(Remark):
    """The project file of a run, by default `histories.yaml`, and the options of `run`.

    Attributes:
        select: Names, patterns in quotes such as 'crm.*', or tag:nightly. +NAME adds its upstream
            declarations, NAME+ its downstream declarations.
        failed: Run only the declarations that failed, were refused or did not start in their last run.
        jobs: Largest number of tables to deliver at once.
        dry_run: Print the changes, and write nothing. If a table has several new files, only the first one is
            compared.
        on_schema_change: Accept or refuse missing columns, for all tables, instead of the file's settings.
        branch: Deliver tables and feeds to this branch, as a preview. `backstory publish` makes it the table.
    """

    file: str | Path | None = field(default=None, kw_only=False)
    select: tuple[str, ...] = field(default=(), converter=_words)
    failed: bool = False
    jobs: int = 4
    dry_run: bool = False
    on_schema_change: OnSchemaChange | None = None
    branch: str | None = None

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.jobs < 1:
            raise bad_option("`jobs=` must be at least 1.", "Give how many tables at once.")


@frozen
class RunWatcher:
    """Callbacks for a run's progress: its selection, and each declaration's beginning and end."""

    on_selection: "Callable[[Sequence[Declaration]], object]" = lambda _: None
    on_begin: Callable[[str], object] = lambda _: None
    on_end: "Callable[[RunReceipt], object]" = lambda _: None
