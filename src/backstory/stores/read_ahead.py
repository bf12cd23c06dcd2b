"""Several readers one after the other, each of which works in a thread while others are waited for."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from typing import TypeVar

Item = TypeVar("Item")


def read_ahead(pool: Executor, readers: Iterable[Callable[[], Iterator[Item]]], count: int) -> Iterator[Item]:
    """What the readers give, in their order; `count` of them have begun, each one item ahead."""
    rest = iter(readers)
    begun = deque[tuple[Iterator[Item], Future[Item | None]]]()

    def begin() -> None:
        for reader in rest:
            items = reader()
            begun.append((items, pool.submit(next, items, None)))
            return

    for _ in range(count):
        begin()
    try:
        while begun:
            items, first = begun[0]
            item = first.result()
            if item is None:
                begun.popleft()
                begin()
            else:
                begun[0] = items, pool.submit(next, items, None)
                yield item
    finally:
        for items, ahead in begun:
            ahead.add_done_callback(partial(_close, items))


def _close(items: Iterator[Item], _done: object) -> None:
    """A reader that nobody needs any more ends where it is."""
    close = getattr(items, "close", None)
    if close is not None:
        close()
