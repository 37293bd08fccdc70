"""Where a number was measured: machine, versions and commit, as plain data."""

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

import flashpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Everything a reader needs to judge or repeat a measurement.

    Attributes:
        device: name of the CPU or GPU.
        driver, cuda, cudnn, triton: versions that count on a GPU; None on the CPU.
        commit: what FLASHPOINT_COMMIT says, for copies of a checkout; else of the checkout that
            Flashpoint runs from, with "-dirty" where files differ from it, or None outside of one.
        time_utc: start of the measurement, ISO 8601.
    """

    device: str
    driver: str | None
    cores: int
    threads: int
    platform: str
    python: str
    torch: str
    flashpoint: str
    commit: str | None
    time_utc: str
    cuda: str | None = None
    cudnn: str | None = None
    triton: str | None = None


def describe(device: str = "cpu") -> Environment:
    """Look at this process and machine."""
    is_gpu = device == "cuda"
    return Environment(
        device=torch.cuda.get_device_name() if is_gpu else cpu_name(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        platform=f"{platform.system()}-{platform.machine()}",
        python=platform.python_version(),
        torch=str(torch.__version__),
        flashpoint=flashpoint.__version__,
        commit=os.environ.get("FLASHPOINT_COMMIT") or checkout_commit(Path(__file__)),
        time_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        **(_gpu_versions() if is_gpu else {"driver": None}),
    )


def _gpu_versions() -> dict[str, str | None]:
    """What runs below torch."""
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "driver": _output(*query),
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version() or "") or None,
        "triton": _version("triton"),
    }


def _version(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    """The model as Linux names it, else as Python does."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def checkout_commit(file: Path) -> str | None:
    """The commit of the checkout that ``file`` is tracked in, or None."""
    git = ("git", "-C", str(file.parent))
    if _output(*git, "ls-files", "--error-unmatch", file.name) is None:
        return None
    return _output(*git, "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*")


def _output(*command: str) -> str | None:
    """First line that a command prints, or None if it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.partition("\n")[0].strip() or None
