"""Trials as tasks of a Ray cluster, or of a Ray on this machine that is started for them.

Whoever reaches a Ray's ports runs code there. One that is started here listens on the loopback
address alone; to share a machine, start a cluster with Ray's own command and name its address.

Nodes work in the trials' folders where they see them, on storage that all share. Where a node does
not, it works in a temporary folder and its small files come back with the task's result; what was
stopped there begins anew.
"""

import json
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flashpoint.errors import InputError, UnsupportedError, require
from flashpoint.files import write_atomically
from flashpoint.lab.runs import names, trials, writing
from flashpoint.lab.study import store
from flashpoint.lab.study.local import SECONDS_TO_SAVE, OnLook, stopped_by
from flashpoint.lab.study.outcome import Status
from flashpoint.lab.study.trial import Ending, do_trial
from flashpoint.lab.training.stopping import stop_wishes

LOCAL = "ray"
GPUS_PER_TRIAL = 0.25
SECONDS_BETWEEN_LOOKS = 0.3
LOOPBACK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's, read when it is imported. "0" makes the loopback address that of this machine, on Linux
too; without it Ray replaces a 127.0.0.1 that it is given by an address that others reach."""
LARGEST_FILE = 16 << 20
"""Bytes of a file that comes back from a node."""

Files = Mapping[str, bytes]


def run_on_ray(
    folders: Sequence[Path],
    *,
    address: str,
    jobs: int | None,
    gpus_per_trial: float,
    keep_checkpoints: bool,
    on_look: OnLook,
) -> None:
    """Do trials that are not finished; failures are recorded and stop no other.

    Measurements that run alone take a whole GPU or, where there is none, all cores of a node.

    Args:
        folders: of trials, with their ``trial.json``.
        address: "ray" starts Ray on this machine, "ray://HOST:PORT" connects to a cluster.
        jobs: trials at a time of a Ray on this machine; None: one for each core.
        gpus_per_trial: share of a GPU that a trial takes, where the cluster has any.
        keep_checkpoints: leave them when a trial has finished.
        on_look: for a view.

    Raises:
        Preempted: SIGTERM or Ctrl-C came; what had begun was saved.
    """
    ray = require_ray()
    with _connected(ray, address, jobs), stop_wishes() as wish:
        shared, whole = (
            ray.remote(max_retries=0, **resources)(_work)
            for resources in _resources(ray, gpus_per_trial)
        )
        marks = {folder: _mark(folder) for folder in folders}
        tasks = {
            (whole if store.runs_alone(folder) else shared).remote(
                str(folder.resolve()), (folder / names.TRIAL).read_text(), keep_checkpoints
            ): folder
            for folder in folders
        }
        standing: dict[Path, Status] = dict.fromkeys(folders, "waiting")
        while tasks:
            if wish:
                _cancel(ray, list(tasks))
                raise stopped_by(wish)
            done, _ = ray.wait(list(tasks), timeout=SECONDS_BETWEEN_LOOKS)
            for folder in tasks.values():
                standing[folder] = "running" if _mark(folder) != marks[folder] else "waiting"
            for finished in done:
                folder = tasks.pop(finished)
                standing[folder] = _settle(ray, folder, finished)
            on_look(standing)


def _resources(ray: Any, gpus_per_trial: float) -> tuple[dict[str, float], dict[str, float]]:
    """What a trial takes, and what one that runs alone takes."""
    sizes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = max(size.get("GPU", 0) for size in sizes)
    if gpus_per_trial and gpus:
        if gpus_per_trial > gpus:
            raise InputError(
                f"--gpus-per-trial {gpus_per_trial:g} is more than the {gpus:g} GPUs of any node."
            )
        whole = max(1.0, gpus_per_trial)
        return {"num_cpus": 1, "num_gpus": gpus_per_trial}, {"num_cpus": 1, "num_gpus": whole}
    return {"num_cpus": 1}, {"num_cpus": max(size.get("CPU", 0) for size in sizes)}


def _work(folder: str, trial: str, keep_checkpoints: bool) -> tuple[Ending, Files]:
    """Do a trial on a node; gives files too, if the driver does not see the folder."""
    path = Path(folder)
    if (path / names.TRIAL).is_file():
        return do_trial(path, keep_checkpoints=keep_checkpoints), {}
    with TemporaryDirectory() as temporary:
        path = Path(temporary) / path.name
        writing.write_json(path / names.TRIAL, json.loads(trial))
        ending = do_trial(path)
        kept = (*path.iterdir(), *(path / names.ATTENTION).glob("*"))
        files = {str(file.relative_to(path)): file for file in kept if file.is_file()}
        small = {n: f for n, f in files.items() if f.stat().st_size <= LARGEST_FILE}
        return ending, {name: file.read_bytes() for name, file in small.items()}


def _settle(ray: Any, folder: Path, task: Any) -> Status:
    """Take the result of a task that has ended."""
    try:
        ending, files = ray.get(task)
    except ray.exceptions.RayError as error:
        trials.record_failure(folder, f"Ray: {str(error).strip().splitlines()[-1]}")
        return "failed"
    for name, content in files.items():
        write_atomically(folder / name, lambda handle, content=content: handle.write(content))
    return ending


def _cancel(ray: Any, tasks: list[Any]) -> None:
    """Ask tasks to stop as Ctrl-C does, and wait until they have saved."""
    for task in tasks:
        ray.cancel(task)
    ray.wait(tasks, num_returns=len(tasks), timeout=SECONDS_TO_SAVE)


def _mark(folder: Path) -> int | None:
    """What changes when a trial begins: it writes to its log first of all."""
    log = folder / names.LOG
    return log.stat().st_size if log.exists() else None


@contextmanager
def _connected(ray: Any, address: str, jobs: int | None) -> Generator[None]:
    """A Ray to work with; one that was started here is ended."""
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address == LOCAL:
        # "local" starts one even where the environment names a cluster
        options |= {"address": "local", "num_cpus": jobs, "include_dashboard": False}
    else:
        options = {"address": address}
    try:
        ray.init(**options)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise InputError(
            f"--on {address}: no Ray to work with: {reason}. Look at the address, and at "
            "RAY_AUTH_MODE and RAY_AUTH_TOKEN if the cluster asks for a token."
        ) from error
    try:
        if address == LOCAL:
            _require_loopback(ray)
        yield
    finally:
        ray.shutdown()


def _require_loopback(ray: Any) -> None:
    """Refuse a Ray of this machine that others reach, as where it was imported too early."""
    found = ray.util.get_node_ip_address()
    if not ip_address(found).is_loopback:
        raise UnsupportedError(
            f"--on ray started Ray at {found}, which other machines may reach, and ended it. Set "
            f"{LOOPBACK_SWITCH}=0 in the environment, or run a cluster and pass ray://HOST:PORT."
        )


def require_ray() -> Any:
    """The library, kept to this machine, or a line that says what to install."""
    os.environ[LOOPBACK_SWITCH] = "0"
    return require("ray", "--on ray", extra="study")
