"""Processes that are started once and run many functions, each with its rank of a gloo group.

One process imports torch and forks all others, so that a start costs one import.
"""

import importlib
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

TESTS = Path(__file__).parents[1]
TIMEOUT_S = 30


class Workers:
    """The processes of one group; ``run`` gives what a function returns on each of them.

    Functions are sent by name: they stand in modules that a process can import.
    """

    def __init__(self, pipes):
        self.pipes = pipes  # of each rank, to write to and to read from

    def run(self, function, *given):
        """What ``function(*given)`` returns, by rank; an error of any is raised with its trace."""
        found = self.try_run(function, *given)
        for rank, (ok, value) in enumerate(found):
            assert ok, f"rank {rank}: {value}"
        return [value for _, value in found]

    def try_run(self, function, *given):
        """(True, result) or (False, the error and its trace) of each rank."""
        for there, _ in self.pipes:
            pickle.dump((function, given), there)
            there.flush()
        return [_answer(back) for _, back in self.pipes]

    def stop(self):
        for pair in self.pipes:
            for pipe in pair:
                pipe.close()


def _answer(back):
    try:
        return pickle.load(back)
    except EOFError:
        return False, "died"


class Worlds:
    """Several groups of workers, of so many processes each; ``module`` is what all need.

    The first meet at a file. The last ``num_kept`` meet at a store that their rank 0 keeps.
    """

    def __init__(self, *sizes, module="distributed.on_ranks", num_kept=0):
        self.folder = tempfile.TemporaryDirectory()
        path = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
        environment.pop("TRITON_INTERPRET", None)
        given, self.worlds = [], []  # by world and rank, the ends of pipes there and here
        for number, size in enumerate(sizes):
            is_kept = number >= len(sizes) - num_kept
            store = (
                f"tcp://{_free_address()}" if is_kept else f"file://{self.folder.name}/{number}"
            )
            pairs = [(os.pipe(), os.pipe()) for _ in range(size)]
            given.append((store, [(there[0], back[1]) for there, back in pairs]))
            ours = [(os.fdopen(a[1], "wb"), os.fdopen(b[0], "rb")) for a, b in pairs]
            self.worlds.append(Workers(ours))
        fds = [fd for _, world in given for pair in world for fd in pair]
        command = [sys.executable, "-m", "distributed.workers", repr(given), module]
        self.process = subprocess.Popen(command, env=environment, pass_fds=fds)
        for fd in fds:
            os.close(fd)

    def stop(self):
        for world in self.worlds:
            world.stop()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()  # and those that it forked end with their pipes
            self.process.wait()
        self.folder.cleanup()


def _free_address():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def main(given, module):
    """Fork a process for every rank and wait for all of them."""
    import torch
    import torch.fx.experimental.symbolic_shapes  # a first backward does

    importlib.import_module(module)
    torch.set_num_threads(1)
    worlds = eval(given)
    fds = {fd for _, world in worlds for pair in world for fd in pair}
    children = []
    for store, world in worlds:
        for rank, pair in enumerate(world):
            child = os.fork()
            if child == 0:
                for fd in fds.difference(pair):
                    os.close(fd)
                serve(store, rank, len(world), *pair)
            children.append(child)
    for fd in fds:
        os.close(fd)
    for child in children:
        os.waitpid(child, 0)


def serve(store, rank, size, there, back):
    """Run what comes until the pipe ends; never returns."""
    import torch.distributed as dist

    source, out = os.fdopen(there, "rb"), os.fdopen(back, "wb")
    joined = False
    while True:
        try:
            function, given = pickle.load(source)
        except EOFError:
            os._exit(0)  # without waiting for ranks that a test has killed
        try:
            if not joined:
                limit = timedelta(seconds=TIMEOUT_S)
                dist.init_process_group(
                    "gloo",
                    init_method=store,
                    rank=rank,
                    world_size=size,
                    timeout=limit,
                )
                joined = True
            answer = (True, function(*given))
        except Exception as error:  # noqa: BLE001  the test judges it
            answer = (False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        pickle.dump(answer, out)
        out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
