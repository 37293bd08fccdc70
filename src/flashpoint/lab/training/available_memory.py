"""How much memory a process may still take: the machine's, the container's or the GPU's."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch

_UNLIMITED = 2**60
"""Version 1 of cgroups writes a number of about 2 ** 63 where there is no limit."""


def available_memory(device: torch.device) -> int | None:
    """Bytes that this process can still take on a device; None where nobody can say.

    Processes that torchrun started on one CPU have equal shares of it.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + kept
    limits = [free for free in (_machine(), *_containers()) if free is not None]
    return min(limits) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if limits else None


def _machine(info: Path = Path("/proc/meminfo")) -> int | None:
    """What Linux says can be had without swapping; elsewhere all memory that is built in."""
    numbers = _numbers(info)
    if "MemAvailable:" in numbers:
        return numbers["MemAvailable:"] * 1024
    if hasattr(os, "sysconf") and {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= os.sysconf_names.keys():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _containers(
    groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Iterator[int]:
    """What is left of every limit of the process' control groups, of either version."""
    for line in _text(groups).splitlines():
        _, controllers, place = line.split(":", 2)
        if not controllers:
            top, files = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            top = root / "memory"
        else:
            continue
        folder = top / place.lstrip("/")
        for group in (folder, *folder.parents):
            free = _left(group, *files)
            if free is not None:
                yield free
            if group == top:
                break


def _left(group: Path, limit: str, usage: str, cache: str) -> int | None:
    """Of one group: its limit less what is in use, but for files that were merely read."""
    most, used = _text(group / limit).strip(), _text(group / usage).strip()
    if not (most.isdecimal() and used.isdecimal()) or int(most) >= _UNLIMITED:
        return None
    read = _numbers(group / "memory.stat").get(cache, 0)
    return max(0, int(most) - int(used) + read)


def _numbers(file: Path) -> dict[str, int]:
    """Of a file with a name and a number a line."""
    lines = [line.split() for line in _text(file).splitlines()]
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}


def _text(file: Path) -> str:
    """What a file of the system holds; nothing where it is not there."""
    try:
        return file.read_text()
    except OSError:
        return ""
