"""Runs of several processes that are forked, so that torch is imported once; sent by name."""

import os
from pathlib import Path

import torch._dynamo
import torch.distributed as dist
import torch.distributed.checkpoint.hf_storage
import torch.distributed.fsdp
import torch.utils.tensorboard  # noqa: F401  what first steps, saves and logs would import

from flashpoint.lab.training import config_file, loop, text, vision  # noqa: F401  loop asks for


def train_each(plans):
    """Train several runs one after another: files of configs, folders and changes."""
    os.environ["WORLD_SIZE"] = str(dist.get_world_size())
    for file, out, changes in plans:
        loop.train(config_file.load(Path(file), changes), Path(out))
