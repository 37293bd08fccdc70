"""Runs of several processes that are forked, so that torch is imported once; sent by name."""

import os
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import torch._dynamo
import torch.distributed as dist
import torch.distributed.checkpoint.hf_storage
import torch.distributed.fsdp
import torch.utils.tensorboard  # noqa: F401  what first steps, saves and logs would import
from torch.distributed.checkpoint.filesystem import FileSystem

from flashpoint.distributed.gather import Gather
from flashpoint.distributed.reduce import Reduce
from flashpoint.distributed.ring import Ring
from flashpoint.distributed.ulysses import Ulysses
from flashpoint.lab.runs import checkpoints
from flashpoint.lab.training import config_file, loop, text, vision  # noqa: F401  loop asks for
from flashpoint.lab.training.saving import Saver
from flashpoint.lab.training.sharing import whole
from flashpoint.lab.training.step import Step

STRATEGIES = {"gather": Gather, "reduce": Reduce, "ring": Ring, "ulysses": Ulysses}
PATIENCE_S = 30


def train_each(plans):
    """Train several runs one after another: files of configs, folders and changes.

    Gives, for each, the strategies whose backward was called.
    """
    os.environ["WORLD_SIZE"] = str(dist.get_world_size())
    found = []
    for file, out, changes in plans:
        with noted_strategies() as names:
            loop.train(config_file.load(Path(file), changes), Path(out))
        found.append(names)
    return found


@contextmanager
def noted_strategies():
    """The names of those that are called meanwhile."""
    names = set()

    def noting(name, backward):
        def noted(*given):
            names.add(name)
            return backward(*given)

        return staticmethod(noted)

    with ExitStack() as stack:
        for name, function in STRATEGIES.items():
            noted = noting(name, function.backward)
            stack.enter_context(mock.patch.object(function, "backward", noted))
        yield names


def train_while_writing(file, out, changes, step, until):
    """Train while the files of a checkpoint wait until a later step is done.

    Gives what happened, in order, and the whole weights at each checkpoint, by step.
    """
    os.environ["WORLD_SIZE"] = str(dist.get_world_size())
    happened, weights, released = [], {}, threading.Event()
    update, commit, save = Step.__call__, checkpoints.commit, Saver.save
    create_stream = FileSystem.create_stream

    def noted_update(self, batch):
        update(self, batch)
        happened.append(f"step {1 + sum(x.startswith('step') for x in happened)}")
        if happened[-1] == f"step {until}":
            released.set()

    def noted_commit(folder, number, *given):
        happened.append(f"commit {number}")
        return commit(folder, number, *given)

    def noted_save(self, number, *given):
        state = self.model.module.state_dict()
        weights[number] = {name: whole(x).clone() for name, x in state.items()}
        save(self, number, *given)

    @contextmanager
    def held_stream(self, path, mode):
        if Path(path).parent.name.endswith(f"step_{step}"):
            assert released.wait(PATIENCE_S)
        with create_stream(self, path, mode) as stream:
            yield stream

    with (
        mock.patch.object(Step, "__call__", noted_update),
        mock.patch.object(checkpoints, "commit", noted_commit),
        mock.patch.object(Saver, "save", noted_save),
        mock.patch.object(FileSystem, "create_stream", held_stream),
    ):
        loop.train(config_file.load(Path(file), changes), Path(out))
    return happened, weights
