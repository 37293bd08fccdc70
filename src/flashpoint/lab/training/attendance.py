"""Who is missing when processes cannot reach each other: by a list that all of them keep."""

import os
import socket
import time
from pathlib import Path
from typing import Any

GRACE_S = 3.0
"""How long who noticed that another is missing waits for the others to notice it, too."""


class Attendance:
    """Where each process runs, and which of them noticed that one is missing.

    Args:
        store: of torch.distributed, which outlives single processes.
        rank, size: of this process, and how many there are.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        store.set(f"place {rank}", f"{socket.gethostname()} {os.getpid()}")

    def describe_missing(self) -> str:
        """Words for those that died, or else for those that say nothing.

        Who lives notices, too, that messages do not come, and says so here.
        """
        silent = [n for n in range(self._size) if n != self._rank]
        end = time.monotonic() + GRACE_S
        try:
            self._store.set(f"noticed {self._rank}", "")
            while silent and time.monotonic() < end:
                dead = [n for n in silent if is_dead(self._store.get(f"place {n}").decode())]
                if dead:  # said at once: who started us may end us next
                    return f"{_named(dead)}, which died"
                time.sleep(0.05)
                silent = [n for n in silent if not self._store.check([f"noticed {n}"])]
        except RuntimeError:  # the store went with the process that had it
            return "another process"
        return f"{_named(silent)}, which did not answer" if silent else "touch with the others"


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


def _named(ranks: list[int]) -> str:
    return f"process{'es' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
