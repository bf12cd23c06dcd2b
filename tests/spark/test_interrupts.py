"""The effect of an interrupt on calls."""

import os
import signal
import weakref

import pytest

from backstory.spark import process
from backstory.spark.process import AFTER, allow_interrupts, raise_interrupts
from backstory.spark.process import time as clock


@pytest.fixture
def handled(spark, monkeypatch):
    """Spark's interrupt handler for the length of a test. Later failures are not interrupts."""
    monkeypatch.setattr(process, "_came", [float("-inf")])
    before = signal.getsignal(signal.SIGINT)
    allow_interrupts()
    yield signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_a_failure_soon_after_an_interrupt_is_raised_as_the_interrupt(handled, monkeypatch):
    """Java may not answer calls that clean up. A much later failure is a failure."""
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), raise_interrupts():
        raise ConnectionError("Answer from Java side is empty")
    now = clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now + AFTER + 1)
    with pytest.raises(ConnectionError), raise_interrupts():
        raise ConnectionError("Answer from Java side is empty")


class Thing:
    """An object that can be released."""


def test_an_interrupt_swallowed_by_a_callback_is_raised_again(handled):
    """Python ignores exceptions while py4j releases a Java object."""
    passed = []

    def _garbage_collect_object(_):
        os.kill(os.getpid(), signal.SIGINT)
        passed.append("collected")

    thing = Thing()
    watched = weakref.ref(thing, _garbage_collect_object)
    del thing
    with pytest.raises(KeyboardInterrupt):
        signal.pause()
    assert passed == ["collected"]
    assert watched() is None
