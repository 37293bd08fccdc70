"""Who lost another process says whom: those that died, or those that do not answer."""

import os
import socket
import subprocess
import sys

import pytest
import torch.distributed as dist

from flashpoint.distributed.attendance import Attendance

HERE = socket.gethostname()


@pytest.fixture
def store():
    return dist.HashStore()


def attend(store, rank, size):
    return Attendance(store, rank, size, ("process", "processes"), grace_s=0.2)


def test_those_that_say_nothing_are_named(store):
    first, _, third, fourth = (attend(store, rank, 4) for rank in range(4))
    store.set("noticed 2", "")
    assert first.describe_missing() == "processes 1, 3, which did not answer"
    assert third.describe_missing() == "processes 1, 3, which did not answer"
    store.set("noticed 1", "")
    assert fourth.describe_missing() == "touch with the others"


def test_those_that_died_are_named_alone_and_at_once(store):
    gone = subprocess.Popen([sys.executable, "-c", ""])  # nobody asks yet how it ended
    os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
    here = attend(store, 0, 3)
    store.set("place 1", f"{HERE} {gone.pid}")
    store.set("place 2", "another-machine 1")
    assert here.describe_missing() == "process 1, which died"
    gone.wait()
    assert here.describe_missing() == "process 1, which died"


def test_who_noticed_and_then_ended_is_not_named(store):
    """A ring tells who stands next to the lost one first."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = Attendance(store, 0, 4, grace_s=0.2)
    for rank in (1, 2, 3):
        store.set(f"place {rank}", f"{HERE} {gone.pid}")
    for rank in (1, 3):
        store.set(f"noticed {rank}", "")
    assert here.describe_missing() == "rank 2, which died"


def test_who_never_came_is_named(store):
    assert (
        Attendance(store, 0, 2, grace_s=0.2).describe_missing() == "rank 1, which did not answer"
    )


def test_a_store_that_is_gone_names_nobody(store, monkeypatch):
    here = attend(store, 0, 2)

    def fail(*_):
        raise dist.DistNetworkError("Connection reset by peer")

    monkeypatch.setattr(here, "_store", type("Gone", (), {"set": fail}))
    assert here.describe_missing() == "another process"
