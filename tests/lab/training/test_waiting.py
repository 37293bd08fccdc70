"""The time a run waits for its data."""

import json
import time

import pytest
import torch
from implementations import needs_gpu
from lab.training.runs import tiny_config, train_quietly

from flashpoint.lab.training.vision import VisionTask
from flashpoint.lab.training.waiting import Waiting


def test_only_what_is_measured_counts_and_only_once():
    waiting = Waiting(torch.device("cpu"))
    for _ in range(2):
        with waiting.measured():
            time.sleep(0.02)
        time.sleep(0.05)
    assert 0.04 <= waiting.read() < 0.08
    assert waiting.read() == 0.0


def test_run_with_slow_data_says_so(tmp_path, monkeypatch):
    quick = VisionTask.batches

    def slow(self, start):
        for batch in quick(self, start):
            time.sleep(0.05)
            yield batch

    monkeypatch.setattr(VisionTask, "batches", slow)
    train_quietly(tiny_config("steps=4", "log_every=2"), tmp_path / "run")
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    first, second = [
        line for line in map(json.loads, text.splitlines()) if line["kind"] == "train"
    ]
    assert 0.0 < first["data_wait"] <= 1.0
    assert second["data_wait"] * (second["seconds"] - first["seconds"]) >= 0.1


@needs_gpu
@pytest.mark.gpu
def test_time_that_the_host_is_ahead_of_the_gpu_is_not_lost():
    device = torch.device("cuda")
    waiting = Waiting(device)
    torch.cuda._sleep(200_000_000)  # the step before: 0.1 s and more
    with waiting.measured():
        time.sleep(0.05)
    torch.cuda.synchronize()
    assert waiting.read() < 0.02
    with waiting.measured():
        time.sleep(0.05)
    torch.cuda.synchronize()
    assert waiting.read() > 0.04
