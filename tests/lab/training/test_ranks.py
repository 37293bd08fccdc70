"""Processes: what one alone does, and which are refused."""

import socket
import time
from typing import get_args

import pytest
import torch
import torch.distributed as dist
from lab.training.runs import TINY

from flashpoint.distributed.strategy import STRATEGIES
from flashpoint.errors import InputError, LostRankError
from flashpoint.lab.runs.failure import RunError
from flashpoint.lab.runs.schema import plain
from flashpoint.lab.training import config_file, ranks
from flashpoint.lab.training.config import ParallelConfig, Strategy
from flashpoint.lab.training.ranks import Ranks, join


def test_one_process_needs_no_group():
    with join("cpu", ParallelConfig(shard=True)) as ranks:
        assert (ranks.rank, ranks.size, ranks.is_first) == (0, 1, True)
        assert ranks.any(True)
        assert not ranks.any(False)
        assert ranks.max(3) == 3
        assert ranks.share_text("text") == "text"
        assert ranks.mean_(torch.tensor(2.0)) == 2.0


@pytest.mark.parametrize(
    ("parallel", "said"),
    [
        ("none", "data 1 x sequence 1 x tensor 1 = 1 processes, and there are 6. "),
        (
            {"data": 2, "tensor": 2},
            "data 2 x sequence 1 x tensor 2 = 4 processes, and there are 6",
        ),
        ({"sequence": 4}, "data N x sequence 4 x tensor 1 = a multiple of 4 processes, and there"),
    ],
)
def test_processes_that_are_not_asked_for_are_refused_with_the_numbers(
    monkeypatch, parallel, said
):
    monkeypatch.setenv("WORLD_SIZE", "6")
    config = config_file.parse({**TINY, "parallel": parallel}).parallel
    with pytest.raises(InputError, match=f"parallel asks for {said}"):
        join("cpu", config).__enter__()


def test_one_process_does_not_do_the_work_of_two():
    said = r"= a multiple of 2 processes, and there is 1\. .* torchrun --nproc-per-node 2\."
    with pytest.raises(InputError, match=said):
        join("cpu", ParallelConfig(sequence=2)).__enter__()


def test_processes_that_do_not_meet_are_told_where(monkeypatch):
    """Without torchrun, process 0 keeps the store and waits for the others there."""
    monkeypatch.setattr(ranks, "START_S", 1.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "2"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LostRankError, match=f"did not meet at 127.0.0.1:{port}, where process 0"):
        ranks._meet("gloo", 0.5)


@pytest.mark.parametrize(("timeout_s", "limit_s"), [(0.2, 0.5), (0.8, 0.8)])
def test_who_never_begins_is_named(monkeypatch, timeout_s, limit_s):
    """After ``timeout_s``, but no sooner than a start may take."""
    store = dist.HashStore()
    store.set("place 2", "elsewhere 1")  # the third has come
    monkeypatch.setattr(ranks, "START_S", 0.5)
    monkeypatch.setattr(ranks, "rendezvous", lambda url, **_: iter([(store, 0, 3)]))
    begin = time.monotonic()
    said = r"^process 0 of 3 waited \d s for process 1 to begin\. Look at its log, or set a larger"
    with pytest.raises(LostRankError, match=said):
        ranks._meet("gloo", timeout_s)
    assert limit_s <= time.monotonic() - begin < limit_s + 5
    assert not dist.is_initialized()


def test_words_and_sections_of_parallel_are_read_and_written():
    """A config that an earlier version wrote is the same file."""
    for word in ("ddp", "fsdp", "none"):
        assert config_file.parse({**TINY, "parallel": word}).parallel == ParallelConfig.parse(word)
        assert plain(ParallelConfig.parse(word)) == word
    assert plain(config_file.parse(TINY))["parallel"] == "ddp"
    changed = config_file.parse({**TINY, "parallel": "fsdp"}, ["parallel.sequence=2"])
    section = {"data": None, "sequence": 2, "strategy": "auto", "tensor": 1}
    assert plain(changed)["parallel"] == {**section, "shard": True, "timeout_s": None}
    with pytest.raises(InputError, match=r"parallel='dp' is unknown\. Did you mean 'ddp'"):
        config_file.parse({**TINY, "parallel": "dp"})


def test_a_strategy_is_one_of_the_librarys_and_is_read_and_written():
    assert get_args(Strategy) == ("auto", *STRATEGIES)
    for strategy in STRATEGIES:
        config = config_file.parse(TINY, ["parallel.sequence=2", f"parallel.strategy={strategy}"])
        assert config.parallel == ParallelConfig(sequence=2, strategy=strategy)
        assert config_file.parse(plain(config)) == config
    with pytest.raises(
        InputError, match=r"^parallel\.strategy='rings' must be 'auto' or "
    ) as caught:
        config_file.parse(TINY, ["parallel.strategy=rings"])
    with pytest.raises(
        InputError, match=r"strategy='ring' is for .* share tokens, but sequence=1"
    ):
        config_file.parse(TINY, ["parallel.strategy=ring"])
    assert str(caught.value).endswith("'reduce' or 'ulysses'. Did you mean 'ring'?")


def test_places_of_a_mesh_follow_the_order_of_ranks():
    """Neighbors share heads, then tokens; the rest are other samples."""
    places = [Ranks(rank=rank, size=8, sequence=2, tensor=2) for rank in range(8)]
    assert [ranks.data_rank for ranks in places] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [ranks.replica_rank for ranks in places] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert places[0].place["world_size"] == 2


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
