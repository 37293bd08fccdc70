"""metrics.jsonl and TensorBoard's events."""

import sys

from flashpoint.lab.runs.metrics import read_metrics
from flashpoint.lab.training.metrics import Metrics


def line(step, kind="train", **numbers):
    return {"kind": kind, "step": step, **numbers}


def test_lines_come_back_in_order(tmp_path):
    metrics = Metrics(tmp_path, 0, print)
    metrics.add(line(1, loss=0.1))
    metrics.add(line(2, "validation", top1=0.5))
    metrics.close()
    assert read_metrics(tmp_path) == [line(1, loss=0.1), line(2, "validation", top1=0.5)]


def test_lines_behind_the_checkpoint_are_dropped(tmp_path):
    metrics = Metrics(tmp_path, 0, print)
    for step in range(1, 6):
        metrics.add(line(step))
    metrics.close()
    metrics = Metrics(tmp_path, 3, print)
    metrics.add(line(4, loss=1.0))
    metrics.close()
    assert read_metrics(tmp_path) == [line(1), line(2), line(3), line(4, loss=1.0)]


def test_half_written_line_is_dropped(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"kind": "train", "step": 1}\n{"kind": "tra')
    metrics = Metrics(tmp_path, 1, print)
    metrics.add(line(2))
    metrics.close()
    assert read_metrics(tmp_path) == [line(1), line(2)]
    assert len(file.read_text().splitlines()) == 2


def test_validations_are_found_by_step(tmp_path):
    metrics = Metrics(tmp_path, 0, print)
    for entry in (line(1), line(2, "validation", top1=0.5)):
        metrics.add(entry)
    metrics.close()
    assert metrics.validations() == {2: line(2, "validation", top1=0.5)}


def test_tensorboard_gets_the_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = Metrics(tmp_path, 0, print)
    metrics.add(line(3, loss=0.25, skipped=0))
    metrics.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(3, 0.25)]


def test_without_tensorboard_a_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    said = []
    metrics = Metrics(tmp_path, 0, said.append)
    metrics.add(line(1, loss=0.5))
    metrics.close()
    assert said == ["no TensorBoard events: pip install tensorboard to get them."]
    assert read_metrics(tmp_path) == [line(1, loss=0.5)]
