"""Where a number comes from: the processor's name and the commit of the code."""

import os
import platform
import subprocess
from pathlib import Path


def cpu_name() -> str:
    """The model as Linux names it, else as Python does."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str | None:
    """What FLASHPOINT_COMMIT says, for copies of a checkout; else the checkout's, or None."""
    return os.environ.get("FLASHPOINT_COMMIT") or checkout_commit(Path(__file__))


def checkout_commit(file: Path) -> str | None:
    """Commit of the checkout that ``file`` is tracked in, -dirty if it was changed; or None."""
    git = ("git", "-C", str(file.parent))
    if first_line(*git, "ls-files", "--error-unmatch", file.name) is None:
        return None
    return first_line(*git, "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*")


def first_line(*command: str) -> str | None:
    """First line that a command prints, or None if it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.partition("\n")[0].strip() or None
