"""Whether all ranks make the same call: asked before anything is sent that could hang."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from flashpoint.distributed.transport import Transport
from flashpoint.errors import FlashpointError, InputError, UnsupportedError

MOST_KNOWN = 1024
"""Calls that ``check="first"`` remembers."""


class Held(NamedTuple):
    """What a rank has of a sequence.

    Attributes:
        queries, keys: how many.
        bias, mask: whose rows they have; see ``scores.Rows``.
    """

    queries: int = 0
    keys: int = 0
    bias: int = 0
    mask: int = 0


class Signature(NamedTuple):
    """What this rank is about to do.

    Attributes:
        fields: by name, what must be the same on all ranks, as plain data.
        held: what may differ.
        problem: why it cannot; all ranks raise it.
    """

    fields: Mapping[str, Any]
    held: Held = Held()
    problem: FlashpointError | None = None

    def digest(self) -> int:
        """A number that differs, almost surely, where any field does."""
        text = json.dumps(self.fields, sort_keys=True, default=str)
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


class Agreement:
    """Compares calls over the ranks of a group.

    Args:
        check: "always"; or "first", once for each signature. The latter is for shards of which
            none ever changes its shape unless all do: ranks that know a call do not ask again.
    """

    def __init__(self, check: str) -> None:
        self.check = check
        self._known: dict[tuple[int, Held], list[Held]] = {}

    def ask(self, transport: Transport, mine: Signature) -> list[Held]:
        """What every rank holds, by rank; one error on all if anything else differs."""
        digest = mine.digest()
        key = (digest, mine.held)
        if self.check == "first" and mine.problem is None and key in self._known:
            return self._known[key]
        failed = int(mine.problem is not None)
        found = transport.exchange_numbers([digest, failed, *mine.held])
        if any(row[0] != digest or row[1] for row in found):
            _explain(transport, mine)
        held = [Held(*row[2:]) for row in found]
        if self.check == "first":
            if len(self._known) >= MOST_KNOWN:  # at the same call on all ranks
                self._known.clear()
            self._known[key] = held
        return held


def _explain(transport: Transport, mine: Signature) -> None:
    """Raise, on every rank, what the first rank in trouble says, or who differs in what."""
    problem = mine.problem
    said = None if problem is None else (isinstance(problem, UnsupportedError), str(problem))
    text = json.dumps((said, mine.fields), default=str)
    found = [json.loads(each) for each in transport.exchange_texts(text, "calls")]
    for rank, (said, _) in enumerate(found):
        if said is not None:
            kind = UnsupportedError if said[0] else InputError
            raise kind(f"rank {rank}: {said[1]}")
    every = [fields for _, fields in found]
    for rank, fields in enumerate(every):
        for name, value in fields.items():
            if value != every[0].get(name):
                raise InputError(
                    f"rank {rank} has {name} {value}, rank 0 has {every[0].get(name)}. All ranks "
                    "of a sequence must make the same call."
                )
    raise InputError("ranks make different calls, and their values print alike.")
