"""Where a number was measured: machine, versions and commit, as plain data."""

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata

import torch

import flashpoint
from flashpoint.lab.runs.provenance import commit, cpu_name, first_line


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
        commit=commit(),
        time_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        **(_gpu_versions() if is_gpu else {"driver": None}),
    )


def _gpu_versions() -> dict[str, str | None]:
    """What runs below torch."""
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "driver": first_line(*query),
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
