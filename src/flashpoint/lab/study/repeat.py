"""The commands that make a study's numbers again: its commit, its data, the study."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from flashpoint.lab.data.small_sets import PREPARED
from flashpoint.lab.study.defaults import options_of
from flashpoint.lab.study.needs import Need, needs_of
from flashpoint.lab.study.plan import Settings, Trial

DIRTY = "-dirty"
"""Behind the commit of a checkout that was changed."""


def commands_of(
    name: str,
    settings: Settings,
    trials: Sequence[Trial],
    environments: Sequence[Mapping[str, Any]],
) -> list[str]:
    """All lines, in order.

    Args:
        name: of the study.
        settings: what it was run with.
        trials: what was done.
        environments: of all records, which say at what commit.
    """
    prepared = [prepare_command(need) for need in needs_of(trials)]
    return [
        *_checkout(environments),
        *dict.fromkeys(line for line in prepared if line),
        shlex.join(["flashpoint", "study", "run", name, *options_of(settings)]),
    ]


def _checkout(environments: Sequence[Mapping[str, Any]]) -> list[str]:
    """The commit of most trials; what else there is to say about it stands behind it."""
    found = Counter(str(stated["commit"]) for stated in environments if stated.get("commit"))
    if not found:
        return []
    (commit, times), *others = found.most_common()
    clean = commit.removesuffix(DIRTY)
    remarks = ["with changes that were not committed"] if clean != commit else []
    if others:
        remarks.append(f"{times} of {found.total()} trials")
        remarks += [f"{number} at {shlex.quote(other)}" for other, number in others]
    behind = f"  # {', '.join(remarks)}" if remarks else ""
    return [f"git checkout {shlex.quote(clean)}{behind}"]


def prepare_command(need: Need) -> str:
    """How a place comes to be; empty where ``flashpoint data prepare`` does not make it.

    Example:
        >>> prepare_command(Need("data/en-de-docs", is_text=True))
        'flashpoint data prepare en-de-docs --to data/en-de-docs'
    """
    kind, colon, rest = need.place.partition(":")
    if need.is_text:
        folder = rest.partition(":")[0] if kind == "documents" else "" if colon else need.place
        return f"flashpoint data prepare en-de-docs --to {shlex.quote(folder)}" if folder else ""
    if kind not in PREPARED or not rest:
        return ""
    known, folder = PREPARED[kind], shlex.quote(rest.partition(":")[0])
    return f"{known.fetch} && flashpoint data prepare {kind} --from {known.file} --to {folder}"
