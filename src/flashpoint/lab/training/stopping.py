"""SIGTERM and Ctrl-C as a wish, granted when a step is done or between validation's batches."""

import signal
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # at run time it brings torch, which those who only wait do without
    from flashpoint.lab.training.ranks import Ranks

T = TypeVar("T")

_DONE, _GO_ON, _STOP = range(3)


class Wish:
    """Whether someone asked the run to stop.

    Attributes:
        name: the signal that came, or "".
    """

    def __init__(self) -> None:
        self.name = ""

    def __bool__(self) -> bool:
        return bool(self.name)


class Stopped(Exception):
    """All processes left a validation that was not done, as one of them was asked to stop."""


def in_step(batches: Iterable[T], ranks: "Ranks", wish: Wish | None) -> Generator[T | None]:
    """Batches as long as any process has one; None in those that have no more.

    Before each, all processes agree to go on; if one was asked to stop, Stopped comes in all.
    """
    rest = iter(batches)
    while True:
        batch = next(rest, None)
        own = _DONE if batch is None else _STOP if wish else _GO_ON
        agreed = ranks.max(own)
        if agreed == _DONE:
            return
        if agreed == _STOP:
            raise Stopped
        yield batch


@contextmanager
def stop_wishes() -> Generator[Wish]:
    """Note SIGTERM and the first Ctrl-C instead of dying; a second Ctrl-C interrupts at once.

    Outside of the main thread signals stay as they are, for Python cannot handle them there.
    """
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return

    def note(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and wish:
            raise KeyboardInterrupt
        wish.name = signal.Signals(number).name

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
