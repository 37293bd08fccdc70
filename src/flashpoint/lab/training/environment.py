"""The machine, the versions and the commit that a record names."""

import platform
from datetime import UTC, datetime
from typing import Any

import torch

import flashpoint
from flashpoint.lab.runs.provenance import commit, cpu_name


def describe_environment(device: torch.device, num_processes: int) -> dict[str, Any]:
    """Machine, versions and commit of this process."""
    is_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if is_gpu else cpu_name(),
        "device_type": device.type,
        "num_processes": num_processes,
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()}-{platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda if is_gpu else None,
        "flashpoint": flashpoint.__version__,
        "commit": commit(),
        "time_utc": datetime.now(UTC).isoformat(timespec="seconds"),
    }
