"""Who lost another process says whom: those that died, or those that do not answer."""

import os
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from flashpoint.distributed import transport
from flashpoint.distributed.attendance import Attendance

HERE = socket.gethostname()
TIMEOUT_S = 0.2


@pytest.fixture
def store():
    return dist.HashStore()


@pytest.fixture(scope="module")
def gone():
    """The number of a process that ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def attend(store, rank, size):
    return Attendance(store, rank, size, ("process", "processes"))


def place(store, rank, pid):
    store.set(f"place {rank}", f"{HERE} {pid}")


def test_those_that_say_nothing_are_named(store):
    first, _, third, fourth = (attend(store, rank, 4) for rank in range(4))
    store.set("noticed 2", "")
    assert first.describe_missing(TIMEOUT_S) == "processes 1, 3, which did not answer"
    assert third.describe_missing(TIMEOUT_S) == "processes 1, 3, which did not answer"
    store.set("noticed 1", "")
    assert fourth.describe_missing(TIMEOUT_S) == "touch with the others"


def test_those_that_notice_as_late_as_a_message_may_be_are_not_named(store):
    """Ranks of a ring wait at different steps."""
    here, *_ = (attend(store, rank, 3) for rank in range(3))
    late = threading.Timer(1.4, store.set, ("noticed 2", ""))
    late.start()
    assert here.describe_missing(2.0) == "process 1, which did not answer"
    late.join()


def test_those_that_died_are_named_alone_and_at_once(store):
    gone = subprocess.Popen([sys.executable, "-c", ""])  # nobody asks yet how it ended
    os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
    here = attend(store, 0, 3)
    place(store, 1, gone.pid)
    store.set("place 2", "another-machine 1")
    start = time.monotonic()
    assert here.describe_missing(None) == "process 1, which died"
    gone.wait()
    assert here.describe_missing(None) == "process 1, which died"
    assert time.monotonic() - start < 1


def test_who_noticed_and_then_ended_is_not_named(store, gone):
    """A ring tells who stands next to the lost one first."""
    here = Attendance(store, 0, 4)
    for rank in (1, 2, 3):
        place(store, rank, gone)
    for rank in (1, 3):
        store.set(f"noticed {rank}", "")
    assert here.describe_missing(TIMEOUT_S) == "rank 2, which died"


def test_who_notices_and_ends_while_others_are_asked_is_not_named(store, gone):
    here = Attendance(store, 0, 3)
    place(store, 1, os.getpid())
    place(store, 2, gone)
    here.learn_places()

    def check(keys):
        there = store.check(keys)
        if keys == ["noticed 1"] and not there:
            store.set("noticed 1", "")
            here._places[1] = f"{HERE} {gone}"
        return there

    here._store = SimpleNamespace(set=store.set, check=check, multi_get=store.multi_get)
    assert here.describe_missing(TIMEOUT_S) == "rank 2, which died"


def test_who_never_came_is_named(store):
    here = Attendance(store, 0, 2)
    assert here.describe_missing(TIMEOUT_S) == "rank 1, which did not answer"


def fail(*_):
    raise dist.DistNetworkError("Connection reset by peer")


def hang(*given):
    time.sleep(5)
    fail(*given)


@pytest.mark.parametrize("answer", [fail, hang])
def test_without_a_store_those_that_died_are_named_or_else_peers(store, gone, answer):
    for pid, said in [(gone, "process 1, which died"), (os.getpid(), "one of processes 1, 2")]:
        here = attend(store, 0, 3)
        place(store, 1, pid)
        store.set("place 2", "another-machine 1")
        here.learn_places()
        here._store = SimpleNamespace(set=answer)
        start = time.monotonic()
        assert here.describe_missing(TIMEOUT_S, [1, 2]) == said
        assert time.monotonic() - start < TIMEOUT_S + 1.5
    assert here.describe_missing(TIMEOUT_S) == "another process"


def test_what_a_store_said_before_it_was_gone_counts(store):
    """Rank 2 keeps it, notices and ends first."""
    here, *_ = (attend(store, rank, 3) for rank in range(3))
    store.set("noticed 2", "")
    once = iter([store.set])
    here._store = SimpleNamespace(
        set=lambda *given: next(once, fail)(*given), check=store.check, multi_get=store.multi_get
    )
    assert here.describe_missing(TIMEOUT_S, [1, 2]) == "process 1, which did not answer"


def test_places_are_asked_for_once(store):
    here, _ = (attend(store, rank, 2) for rank in range(2))
    asked = []
    here._store = SimpleNamespace(multi_get=lambda keys: asked.append(keys) or fail())
    here.learn_places()
    here.learn_places()
    assert asked == [["place 1"]]


def test_a_new_group_of_the_same_ranks_has_a_list_of_its_own(store):
    stores = []
    for _ in range(2):
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        groups = [dist.group.WORLD, dist.new_group([0]), dist.new_group([0])]
        stores += [transport._attendance_of(group)._store for group in groups]
        dist.destroy_process_group()
    for i, each in enumerate(stores):
        each.set("noticed 0", str(i))
    assert [each.get("noticed 0").decode() for each in stores] == list("012345")
