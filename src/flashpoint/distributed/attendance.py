"""Who is missing when ranks cannot reach each other: by a list that all of them keep."""

import os
import socket
import time
from pathlib import Path
from typing import Any

GRACE_S = 1.0
"""How long who noticed that another is missing waits for the others to notice it, too."""


class Attendance:
    """Where each rank runs, and which of them noticed that one is missing.

    Args:
        store: of torch.distributed, which outlives single processes.
        rank, size: of this process, and how many there are.
        noun: what ranks are called, and more of them than one.
        grace_s: how long to wait for others that notice later.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        noun: tuple[str, str] = ("rank", "ranks"),
        grace_s: float = GRACE_S,
    ) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._noun, self._grace_s = noun, grace_s
        store.set(f"place {rank}", f"{socket.gethostname()} {os.getpid()}")

    def describe_missing(self) -> str:
        """Words for those that died, or else for those that say nothing.

        Who lives notices, too, that messages do not come, and says so here.
        """
        others = [n for n in range(self._size) if n != self._rank]
        end = time.monotonic() + self._grace_s
        try:
            self._store.set(f"noticed {self._rank}", "")
            while True:
                # who noticed and then ended was not the first to be missing
                silent = [n for n in others if not self._store.check([f"noticed {n}"])]
                dead = [n for n in silent if self._is_dead(n)]
                if dead:  # said at once: who started us may end us next
                    return f"{self._named(dead)}, which died"
                if not silent or time.monotonic() > end:
                    break
                time.sleep(0.05)
        except RuntimeError:  # the store went with the process that had it
            return f"another {self._noun[0]}"
        return (
            f"{self._named(silent)}, which did not answer" if silent else "touch with the others"
        )

    def _is_dead(self, rank: int) -> bool:
        place = f"place {rank}"
        return self._store.check([place]) and is_dead(self._store.get(place).decode())

    def _named(self, ranks: list[int]) -> str:
        return f"{self._noun[len(ranks) > 1]} {', '.join(map(str, ranks))}"


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
