"""Errors of Python workers, carried to the driver as themselves."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from backstory.errors import BackstoryError, Failed, Refused, TryAgain, UsageError

MARK = "backstory-error "
_KINDS = {kind.__name__: kind for kind in (Failed, UsageError, Refused, TryAgain)}


@contextmanager
def carrying() -> Iterator[None]:
    """In a worker: our own errors become texts that `carried` reads; they never hold row values."""
    try:
        yield
    except BackstoryError as error:
        raise RuntimeError(carry(error)) from None


def carry(error: BackstoryError) -> str:
    """The text by which `carried` knows the error again."""
    return MARK + json.dumps([type(error).__name__, error.to_dict()])


def carried(fault: str) -> BackstoryError | None:
    """On the driver: the error of a worker that Spark's text of a failed job holds, if it does."""
    _, mark, rest = fault.partition(MARK)
    if not mark:
        return None
    (kind, told), _ = json.JSONDecoder().raw_decode(rest)
    return _KINDS[kind](told["code"], told["message"], told["remedy"], told["keys"])
