"""Who lost another process says whom: those that died, or those that do not answer."""

import os
import socket
import subprocess
import sys

import pytest
import torch.distributed as dist

from flashpoint.lab.training import attendance
from flashpoint.lab.training.attendance import Attendance

HERE = socket.gethostname()


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(attendance, "GRACE_S", 0.2)
    return dist.HashStore()


def test_those_that_say_nothing_are_named(store):
    first, _, third, fourth = (Attendance(store, rank, 4) for rank in range(4))
    store.set("noticed 2", "")
    assert first.describe_missing() == "processes 1, 3, which did not answer"
    assert third.describe_missing() == "processes 1, 3, which did not answer"
    store.set("noticed 1", "")
    assert fourth.describe_missing() == "touch with the others"


def test_those_that_died_are_named_alone_and_at_once(store):
    gone = subprocess.Popen([sys.executable, "-c", ""])  # nobody asks yet how it ended
    os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
    here = Attendance(store, 0, 3)
    store.set("place 1", f"{HERE} {gone.pid}")
    store.set("place 2", "another-machine 1")
    assert here.describe_missing() == "process 1, which died"
    gone.wait()
    assert here.describe_missing() == "process 1, which died"


def test_a_store_that_is_gone_names_nobody(store, monkeypatch):
    here = Attendance(store, 0, 2)

    def fail(*_):
        raise dist.DistNetworkError("Connection reset by peer")

    monkeypatch.setattr(here, "_store", type("Gone", (), {"set": fail}))
    assert here.describe_missing() == "another process"
