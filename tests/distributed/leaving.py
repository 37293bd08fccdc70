"""Two ranks that attend, destroy their group and end as a script does.

Prints how many threads of the group each had left, and how it ended.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.fx.experimental.symbolic_shapes  # a first backward does

from flashpoint.distributed import sequence_parallel

held = []  # until the interpreter ends, as the globals of a script are


def attend(rank, path):
    """Once, and leave."""
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    held.append(sequence_parallel(strategy="ulysses"))
    q = torch.randn(1, 2, 6, 8, requires_grad=True)
    held[0](q, q, q).sum().backward()
    dist.destroy_process_group()
    names = [x.read_text("utf-8") for x in Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("pt_gloo") for name in names)


def main(path):
    """Fork both, each of which ends by itself."""
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            os.write(1, f"{attend(rank, path)} left\n".encode())
            return
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    os.write(1, f"{[os.waitstatus_to_exitcode(x) for x in statuses]}\n".encode())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
