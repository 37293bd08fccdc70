"""Processes: what one alone does, and which are refused."""

import pytest
import torch

from flashpoint.errors import InputError
from flashpoint.lab.runs.failure import RunError
from flashpoint.lab.training.ranks import Ranks, join


def test_one_process_needs_no_group():
    with join("cpu", "fsdp") as ranks:
        assert (ranks.rank, ranks.size, ranks.is_first) == (0, 1, True)
        assert ranks.any(True)
        assert not ranks.any(False)
        assert ranks.max(3) == 3
        assert ranks.share_text("text") == "text"
        assert ranks.mean_(torch.tensor(2.0)) == 2.0


def test_several_processes_need_a_way_to_share(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"torchrun started 2 processes, but parallel='none'\."):
        join("cpu", "none").__enter__()


def test_error_of_the_first_keeps_its_kind_when_alone():
    def fail():
        raise InputError("wrong.")

    with pytest.raises(InputError, match=r"wrong\."):
        Ranks().on_first(fail)


def test_errors_of_the_first_end_the_others(monkeypatch):
    """As another process sees it: the text arrives, and ends it too."""
    monkeypatch.setattr(Ranks, "share_text", lambda self, text: "the disk is full.")
    with pytest.raises(RunError, match=r"the disk is full\."):
        Ranks(rank=1, size=2).on_first(lambda: pytest.fail("only the first does it"))
