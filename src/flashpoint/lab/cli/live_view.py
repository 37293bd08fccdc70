"""What changes while one looks, on a terminal only."""

from typing import Any, Self

from rich.console import Console
from rich.live import Live


class LiveView:
    """Between enter and exit ``_live`` is on the screen, if the console is a terminal."""

    def __init__(self, console: Console, **options: Any) -> None:
        self._console = console
        self._live = Live(console=console, transient=True, **options)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()
