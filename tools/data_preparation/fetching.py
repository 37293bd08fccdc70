"""Debian packages as files: downloaded with apt, each whole or not at all, none installed."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from flashpoint.errors import InputError, UnsupportedError

Report = Callable[[str], None]

_NO_NETWORK = re.compile(r"resolv|connect|timed? ?out|unreachable|Failed to fetch", re.IGNORECASE)


def find_packages(names: Sequence[str], folder: Path) -> dict[str, Path]:
    """Those that a folder holds: NAME_VERSION.deb files, or folders NAME they were extracted to.

    Of several versions, the file written last counts.
    """
    found: dict[str, Path] = {}
    for name in names:
        files = sorted(folder.glob(f"{name}_*.deb"), key=lambda file: file.stat().st_mtime)
        if files:
            found[name] = files[-1]
        elif (folder / name).is_dir():
            found[name] = folder / name
    return found


def require_packages(names: Sequence[str], folder: Path) -> dict[str, Path]:
    """All of them from a folder, or an error that names those that are missing."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder. {advice(names)}")
    found = find_packages(names, folder)
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(
            f"{folder} holds {len(found)} of the {len(names)} packages. {advice(missing)}"
        )
    return found


def fetch_packages(names: Sequence[str], folder: Path, report: Report) -> dict[str, Path]:
    """All of them; what the folder does not hold yet is downloaded into it, one by one."""
    found = find_packages(names, folder)
    missing = [name for name in names if name not in found]
    if missing and shutil.which("apt-get") is None:
        raise UnsupportedError(f"there is no apt-get on this machine. {advice(missing)}")
    for number, name in enumerate(missing, start=1):
        report(f"downloading {name} ({number} of {len(missing)})")
        found[name] = _download(name, folder)
    return {name: found[name] for name in names}


def advice(names: Sequence[str]) -> str:
    """How to get packages by hand."""
    return (
        f"On a Debian machine run `apt-get download {' '.join(names)}`, and pass the folder with "
        "these files: --from DIR."
    )


def _download(name: str, folder: Path) -> Path:
    """One package, under a name of its own until it is whole."""
    part = folder / "partial"
    try:
        part.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{part} cannot be made: {error.strerror}.") from error
    process = subprocess.run(
        ["apt-get", "download", "--quiet", name],
        cwd=part,
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    files = sorted(part.glob(f"{name}_*.deb"))
    if process.returncode or not files:
        raise _refusal(name, process.stderr)
    return files[-1].replace(folder / files[-1].name)


def _refusal(name: str, output: str) -> InputError:
    """What apt's output means, in one line."""
    lines = [line for line in output.splitlines() if line.startswith(("E:", "Err:"))]
    said = lines[0].removeprefix("E:").strip() if lines else "apt-get gave no reason"
    if "Unable to locate package" in output or "No packages found" in output:
        return InputError(
            f"apt knows no package {name}. Run `apt-get update` as root first; if that does not "
            f"help, this system's archive lacks it. {advice([name])}"
        )
    if _NO_NETWORK.search(output):
        return InputError(
            f"{name} cannot be downloaded: {said} Is there a network? What is already there is "
            f"kept: run the command again. {advice([name])}"
        )
    return InputError(f"{name} cannot be downloaded: {said} {advice([name])}")
