"""Several readers in sequence, which work in threads ahead of the consumer."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from typing import TypeVar

Item = TypeVar("Item")


def read_ahead(pool: Executor, readers: Iterable[Callable[[], Iterator[Item]]], count: int) -> Iterator[Item]:
    """The items of the readers, in order. At any time `count` readers have begun, each one item ahead."""
    rest = iter(readers)
    started = deque[tuple[Iterator[Item], Future[Item | None]]]()

    def begin() -> None:
        for reader in rest:
            items = reader()
            started.append((items, pool.submit(next, items, None)))
            return

    for _ in range(count):
        begin()
    try:
        while started:
            items, first = started[0]
            item = first.result()
            if item is None:
                started.popleft()
                begin()
            else:
                started[0] = items, pool.submit(next, items, None)
                yield item
    finally:
        for items, pending in started:
            pending.add_done_callback(partial(_close, items))


def _close(items: Iterator[Item], _done: object) -> None:
    """Close a reader that is no longer needed."""
    close = getattr(items, "close", None)
    if close is not None:
        close()
