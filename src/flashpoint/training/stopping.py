"""SIGTERM and Ctrl-C as a wish that the loop grants when a step is done."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


class Wish:
    """Whether someone asked the run to stop.

    Attributes:
        name: the signal that came, or "".
    """

    def __init__(self) -> None:
        self.name = ""

    def __bool__(self) -> bool:
        return bool(self.name)


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
