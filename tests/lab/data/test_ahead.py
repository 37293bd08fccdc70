"""Batches that a thread makes ahead of their use; without a GPU with stand-ins for its streams."""

import contextlib
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from flashpoint.lab.data import ahead
from flashpoint.lab.data.ahead import one_ahead


class Event:
    def synchronize(self):
        pass


class Stream:
    device_index = 0

    def __init__(self, *_, **__):
        pass

    def record_event(self):
        return Event()

    def wait_event(self, event):
        pass


@pytest.fixture(autouse=True)
def _streams(monkeypatch):
    cuda = SimpleNamespace(
        Stream=Stream,
        stream=lambda stream: contextlib.nullcontext(),
        current_stream=lambda device: Stream(),
        set_device=lambda index: None,
    )
    monkeypatch.setattr(ahead, "torch", SimpleNamespace(cuda=cuda, device=torch.device))


class Numbered:
    """A batch."""

    def __init__(self, number):
        self.number = number
        self.images = self.labels = SimpleNamespace(record_stream=lambda stream: None)


def numbered(count, made=None):
    for number in range(count):
        if made is not None:
            made.append(number)
        yield Numbered(number)


GPU = torch.device("cuda")


def test_all_batches_come_in_their_order():
    assert [batch.number for batch in one_ahead(numbered(5), GPU)] == [0, 1, 2, 3, 4]


def test_one_batch_is_made_ahead_and_no_more():
    made = []
    batches = one_ahead(numbered(9, made), GPU)
    next(batches)
    time.sleep(0.1)
    assert made == [0, 1]
    next(batches)
    time.sleep(0.1)
    assert made == [0, 1, 2]
    batches.close()


def test_thread_ends_with_its_user():
    batches = one_ahead(numbered(9), GPU)
    next(batches)
    batches.close()
    assert not [t for t in threading.enumerate() if t.name == "flashpoint-batches"]


def test_error_of_a_batch_reaches_its_user():
    def broken():
        yield Numbered(0)
        raise ValueError("no more")

    batches = one_ahead(broken(), GPU)
    assert next(batches).number == 0
    with pytest.raises(ValueError, match="no more"):
        next(batches)
