"""Who watches a pull: the command line prints what it hears."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backstory.sources.asking import Progress, silent

if TYPE_CHECKING:
    from backstory.doors.odf.adding import Added
    from backstory.doors.odf.receipts import DatasetReceipt


def unheard(_: Any) -> None:
    """What happens while nobody watches."""


@dataclass(frozen=True, slots=True)
class Watcher:
    """Is told which manifest was added, whose turn has come, its stages with their bytes, and its end."""

    added: "Callable[[Added], None]" = unheard
    begun: Callable[[str], None] = unheard
    progress: Progress = silent
    ended: "Callable[[DatasetReceipt], None]" = unheard
