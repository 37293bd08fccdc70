"""Where a number was measured: machine, versions and commit, as plain data."""

import os
from dataclasses import dataclass, fields
from importlib import metadata
from typing import Any

import torch

from flashpoint.lab.runs.provenance import first_line
from flashpoint.lab.training.environment import describe_environment


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

    @property
    def versions(self) -> str:
        """Flashpoint with its commit, and everything below it."""
        commit = f" ({self.commit})" if self.commit else ""
        others = {
            "torch": self.torch,
            "Triton": self.triton,
            "CUDA": self.cuda,
            "cuDNN": self.cudnn,
            "driver": self.driver,
            "Python": self.python,
        }
        known = [f"{name} {version}" for name, version in others.items() if version]
        return f"flashpoint {self.flashpoint}{commit}, {', '.join(known)}"


def describe(device: str = "cpu") -> Environment:
    """Look at this process and machine."""
    known = {field.name for field in fields(Environment)}
    stated = {**describe_environment(torch.device(device)), "cores": os.cpu_count() or 1}
    stated |= _gpu_versions() if device == "cuda" else {"driver": None}
    here: dict[str, Any] = {name: value for name, value in stated.items() if name in known}
    return Environment(**here)


def _gpu_versions() -> dict[str, str | None]:
    """What runs below torch."""
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "driver": first_line(*query),
        "cudnn": str(torch.backends.cudnn.version() or "") or None,
        "triton": _version("triton"),
    }


def _version(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
