"""Processes that are started once and run many functions, each with its rank of a gloo group."""

import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

TESTS = Path(__file__).parents[1]
TIMEOUT_S = 60


class Workers:
    """``size`` processes; ``run`` gives what a function returns on each of them.

    Functions are sent by name: they stand in modules that a process can import.
    """

    def __init__(self, size, timeout_s=TIMEOUT_S):
        self.folder = tempfile.TemporaryDirectory()
        path = os.pathsep.join([str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        environment.pop("TRITON_INTERPRET", None)
        store = f"{self.folder.name}/store"
        command = [sys.executable, "-m", "distributed.workers", store, str(size), str(timeout_s)]
        self.processes = [
            subprocess.Popen(
                [*command, str(rank)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for rank in range(size)
        ]

    def run(self, function, *given):
        """What ``function(*given)`` returns, by rank; an error of any is raised with its trace."""
        found = self.try_run(function, *given)
        for rank, (ok, value) in enumerate(found):
            assert ok, f"rank {rank}: {value}"
        return [value for _, value in found]

    def try_run(self, function, *given):
        """(True, result) or (False, last line of the error and its trace) of each rank."""
        for process in self.processes:
            pickle.dump((function, given), process.stdin)
            process.stdin.flush()
        return [_answer(process) for process in self.processes]

    def stop(self):
        for process in self.processes:
            process.stdin.close()
            process.stdout.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.folder.cleanup()


def _answer(process):
    try:
        return pickle.load(process.stdout)
    except EOFError:
        return False, "died"


def main(store, size, timeout_s, rank):
    """Serve until the pipe ends."""
    import torch
    import torch.distributed as dist

    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed must not be taken for an answer
    torch.set_num_threads(1)
    limit = timedelta(seconds=float(timeout_s))
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(size), timeout=limit
    )
    while True:
        try:
            function, given = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        try:
            answer = (True, function(*given))
        except Exception as error:  # noqa: BLE001  the test judges it
            answer = (False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        pickle.dump(answer, out)
        out.flush()
    os._exit(0)  # without waiting for ranks that a test has killed


if __name__ == "__main__":
    main(*sys.argv[1:])
