"""Runs examples on two processes each, forked by one that imports for all: imports take longest.

    python -m examples.forked FILE ...

It prints what they print, and ends as the first one that fails.
"""

import os
import runpy
import socket
import sys

SIZE = 2


def main(*files):
    """One example after another."""
    import torch
    import torch.fx.experimental.symbolic_shapes  # a first backward does
    from transformers import LlamaForCausalLM  # noqa: F401  what an example needs

    torch.set_num_threads(1)
    for file in files:
        with socket.socket() as place:
            place.bind(("127.0.0.1", 0))
            port = place.getsockname()[1]
        ranks = [fork(file, rank, port) for rank in range(SIZE)]
        failed = [os.waitpid(child, 0)[1] for child in ranks]
        if any(failed):
            sys.exit(f"{file} failed")


def fork(file, rank, port):
    """A process that runs an example as torchrun lets it run."""
    child = os.fork()
    if child:
        return child
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": SIZE, "RANK": rank}
    os.environ |= {name: str(value) for name, value in where.items()}
    status = 1
    try:
        runpy.run_path(file, run_name="__main__")
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
