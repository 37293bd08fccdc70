"""A group that was destroyed is gone: nothing here holds it, and its threads have ended."""

import os
import subprocess
import sys
import weakref

import pytest
import torch
import torch.distributed as dist
from distributed.workers import TESTS
from torch.testing._internal.distributed import fake_pg  # noqa: F401  a backend that is not gloo

from flashpoint.distributed import sequence_parallel, transport
from flashpoint.distributed.strategy import STRATEGIES
from flashpoint.errors import InputError


@pytest.fixture
def join():
    """Begins the world of one process."""

    def begin(backend="gloo"):
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)

    yield begin
    if dist.is_initialized():
        dist.destroy_process_group()


def attend_and_keep(group):
    """All that a script may keep: who attends, and what has yet to be differentiated."""
    kept = []
    for strategy in STRATEGIES:
        attend = sequence_parallel(group, strategy)
        q = torch.randn(1, 2, 3, 4, requires_grad=True)
        attend(q, q, q).sum().backward()
        kept.append((attend, attend(q, q, q)))
    return kept


@pytest.mark.parametrize("is_whole_world", [True, False])
def test_destroyed_group_is_held_by_nothing(join, is_whole_world):
    join()
    group = None if is_whole_world else dist.new_group([0])
    alive = weakref.ref(group or dist.group.WORLD)
    kept = attend_and_keep(group)
    dist.destroy_process_group(group)
    del group
    assert alive() is None
    q = torch.randn(1, 2, 3, 4)
    for attend, _ in kept:
        with pytest.raises(InputError, match=r"of this sequence_parallel was destroyed\."):
            attend(q, q, q)


def test_control_group_goes_with_the_world_even_if_somebody_holds_the_group(join):
    made = []
    for _ in range(2):
        join("fake")
        group = dist.group.WORLD
        control = transport.control_group(group)
        assert control is not group
        assert transport.control_group(group) is control
        assert dist.get_backend(control) == "gloo"
        made.append((group, weakref.ref(control)))
        dist.destroy_process_group()
        del control
    assert [control() for _, control in made] == [None, None]


@pytest.mark.distributed
def test_threads_of_a_destroyed_group_have_ended(tmp_path):
    """Those that run on may ask for the interpreter while it ends, and abort the process."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
    command = [sys.executable, "-m", "distributed.leaving", str(tmp_path / "store")]
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert found.stdout.splitlines() == ["0 left", "0 left", "[0, 0]"], found.stderr
