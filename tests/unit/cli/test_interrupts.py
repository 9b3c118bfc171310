"""A Ctrl-C or SIGTERM while a command waits is kept wherever it comes, and the handlers of before come back."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Iterator

import pytest

from backend.cli.interrupts import SIGNALS, defer_interrupts


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Those of a command in the foreground, whatever the tests were started with."""
    earlier = [signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGTERM, signal.SIG_DFL)]
    yield
    for number, handler in zip(SIGNALS, earlier, strict=True):
        signal.signal(number, handler)


class Row:
    """What a weak reference can point to."""


@pytest.mark.parametrize("number", SIGNALS)
def test_an_interrupt_within_a_weakrefs_callback_is_kept(number: signal.Signals) -> None:
    row = Row()
    watching = weakref.ref(row, lambda _: signal.raise_signal(number))
    with pytest.raises(KeyboardInterrupt), defer_interrupts() as interrupted:
        del row
        assert watching() is None
        assert interrupted.is_set()


def test_however_often_it_comes_the_block_goes_on_to_its_end() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), defer_interrupts():
        for number in SIGNALS * 3:
            signal.raise_signal(number)
            reached.append(number)
    assert len(reached) == 6


def test_nested_ones_have_one_event_and_the_outermost_raises() -> None:
    with pytest.raises(KeyboardInterrupt), defer_interrupts() as outer:
        with defer_interrupts() as inner:
            signal.raise_signal(signal.SIGINT)
        assert inner is outer
        assert outer.is_set()
    with defer_interrupts() as later:
        assert not later.is_set()


def test_another_exception_says_it_instead() -> None:
    with pytest.raises(ValueError, match="cancelled"), defer_interrupts():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("cancelled")


def test_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with defer_interrupts():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_another_thread_changes_nothing_for_the_main_one() -> None:
    inside, leave = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with defer_interrupts():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    inside.wait(60)
    with pytest.raises(KeyboardInterrupt), defer_interrupts() as interrupted:
        signal.raise_signal(signal.SIGINT)
        assert interrupted.is_set()
    leave.set()
    thread.join()


def test_a_signal_ignored_from_the_start_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with defer_interrupts() as interrupted:
        signal.raise_signal(signal.SIGINT)
        assert not interrupted.is_set()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
