"""Who is missing when ranks cannot reach each other: by a list that all of them keep."""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

MOST_S = 30.0
"""How long who noticed that another is missing waits at most for the others to notice it, too."""
_STORE_S = 1.0
"""How long a store may take to answer, and a process of this machine that ends to be gone."""


class Attendance:
    """Where each rank runs, and which of them noticed that one is missing.

    The list is kept in a store. A rank may keep that store and be lost with it. So no question
    waits for its answer without end, and places are learned while all are there.

    Args:
        store: of torch.distributed, which ranks met at.
        rank, size: of this process, and how many there are.
        noun: what ranks are called, and more of them than one.
    """

    def __init__(
        self, store: Any, rank: int, size: int, noun: tuple[str, str] = ("rank", "ranks")
    ) -> None:
        self._store, self._rank, self._noun = store, rank, noun
        self._others = [n for n in range(size) if n != rank]
        self._places: dict[int, str] = {}
        self._has_asked = False
        store.set(_place(rank), f"{socket.gethostname()} {os.getpid()}")

    def learn_places(self) -> None:
        """Ask once where the others run; all of them must have come."""
        if not self._has_asked:
            self._has_asked = True
            _answer(lambda: self._learn(self._others), MOST_S)

    def describe_absent(self) -> str:
        """Words for those that never came, while some still wait for them.

        Who has come may hang before it joins, and nobody knows which it is.
        """

        def ask() -> list[int]:
            return [n for n in self._others if not self._store.check([_place(n)])]

        absent = _answer(ask, _STORE_S)
        if absent == []:
            return f"one of {self._named(self._others)}"
        return self._named(self._others if absent is None else absent)

    def describe_missing(self, timeout_s: float | None, peers: Sequence[int] = ()) -> str:
        """Words for those that died, or else for those that say nothing.

        Who lives notices, too, that messages do not come, and says so here. Some begin to wait for
        a message later than others, and so notice later.

        Args:
            timeout_s: how long a message may take, and so at most how much later; None: MOST_S.
            peers: of the message that did not come, for words if the store does not answer.
        """
        end = time.monotonic() + min(MOST_S if timeout_s is None else timeout_s, MOST_S)
        silent = self._others
        words = self._one_of(peers) if peers else f"another {self._noun[0]}"
        while True:
            ended = self._ended()  # before asking: who noticed and then ended has said so
            answer = _answer(self._ask, end - time.monotonic() + _STORE_S)
            if answer is None:
                return self._describe_without_store(silent, ended, words, end)
            silent, words = answer, f"{self._named(answer)}, which did not answer"
            dead = [n for n in silent if n in ended]
            if dead:  # said at once: who started us may end us next
                return f"{self._named(dead)}, which died"
            if not silent:
                return "touch with the others"
            if time.monotonic() > end:
                return words
            time.sleep(0.05)

    def _describe_without_store(
        self, silent: list[int], ended: list[int], words: str, end: float
    ) -> str:
        """The same where the store went with a rank that kept it, or hangs with it.

        Args:
            silent: those that had not noticed when it last answered; all others if it never did.
            ended: those that had ended when it was asked.
            words: if none of these died.
            end: of the time for others to notice.
        """
        last_look = min(time.monotonic() + _STORE_S, end)
        while not set(silent).intersection(ended) and time.monotonic() < last_look:
            time.sleep(0.05)
            ended = self._ended()
        dead = [n for n in silent if n in ended]
        if dead:
            return f"{self._one_of(dead)}, which died"
        time.sleep(max(0.0, end - time.monotonic()))  # others look who ended, and must not find us
        return words

    def _ask(self) -> list[int]:
        """Say that this rank noticed, and hear who else did not."""
        self._store.set(_noticed(self._rank), "")
        unknown = [n for n in self._others if n not in self._places]
        self._learn([n for n in unknown if self._store.check([_place(n)])])
        return [n for n in self._others if not self._store.check([_noticed(n)])]

    def _learn(self, ranks: list[int]) -> None:
        found = self._store.multi_get([_place(n) for n in ranks]) if ranks else []
        self._places |= {n: place.decode() for n, place in zip(ranks, found, strict=True)}

    def _ended(self) -> list[int]:
        return [n for n in self._others if is_dead(self._places.get(n, ""))]

    def _one_of(self, ranks: Sequence[int]) -> str:
        """Who has ended may have noticed before, and others of a message may live."""
        return f"{'one of ' if len(ranks) > 1 else ''}{self._named(ranks)}"

    def _named(self, ranks: Sequence[int]) -> str:
        return f"{self._noun[len(ranks) > 1]} {', '.join(map(str, ranks))}"


def _place(rank: int) -> str:
    return f"place {rank}"


def _noticed(rank: int) -> str:
    return f"noticed {rank}"


def _answer(ask: Callable[[], T], limit_s: float) -> T | None:
    """What a store says; None if it is gone, or does not answer in time."""
    found: list[T] = []

    def run() -> None:
        with suppress(RuntimeError):
            found.append(ask())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    return found[0] if found else None


def is_dead(place: str) -> bool:
    """Whether a process of this machine has ended; of others nothing is known.

    Args:
        place: name of the machine and number of the process.

    Example:
        >>> is_dead(f"{socket.gethostname()} {os.getpid()}"), is_dead("elsewhere 1")
        (False, False)
    """
    host, _, pid = place.rpartition(" ")
    if host != socket.gethostname() or not Path("/proc/self").exists():
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"  # ended, and nobody asked yet how
