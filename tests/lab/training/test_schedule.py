"""The learning rate as a function of the step."""

import math

import pytest
from lab.training.runs import curve, tiny_config, train_quietly

from flashpoint.errors import InputError
from flashpoint.lab.runs.failure import RunError
from flashpoint.lab.training.config import ScheduleConfig
from flashpoint.lab.training.schedule import learning_rate, warmup_steps
from flashpoint.lab.training.step import Step


def test_rate_rises_linearly_from_zero():
    assert [learning_rate(s, 0.4, 4, 100) for s in range(5)] == pytest.approx(
        [0, 0.1, 0.2, 0.3, 0.4]
    )


def test_rate_falls_to_zero_along_a_cosine():
    rates = [learning_rate(step, 1.0, 10, 110) for step in range(10, 111)]
    wanted = [(1 + math.cos(math.pi * k / 100)) / 2 for k in range(101)]
    assert rates == pytest.approx(wanted)
    assert rates[-1] == pytest.approx(0.0)


def test_rate_without_warmup_begins_at_the_peak():
    assert learning_rate(0, 0.3, 0, 10) == 0.3


def test_warmup_of_the_whole_run_never_divides_by_zero():
    assert [learning_rate(s, 1.0, 2, 2) for s in range(3)] == [0.0, 0.5, 1.0]


def test_warmup_longer_than_the_run_is_refused():
    with pytest.raises(InputError, match="warmup_steps=9 is more than the run's 8 steps"):
        warmup_steps(ScheduleConfig(warmup_steps=9), 8)


def textbook_rate(done, kind):
    """Of the update behind ``done`` others, in 12 of them with 4 on the way up to 0.002."""
    if done < 4:
        return 0.002 * done / 4
    if kind == "inverse_sqrt":
        return 0.002 * math.sqrt(4 / done)
    return 0.001 * (1 + math.cos(math.pi * (done - 4) / 8))


@pytest.mark.parametrize("kind", ["cosine", "inverse_sqrt"])
@pytest.mark.parametrize("stop", [None, 5])
def test_run_updates_at_the_rates_of_the_schedule(tmp_path, monkeypatch, kind, stop):
    """What each group of the optimizer has in an update, also where a run goes on."""
    used, update = [], Step.__call__

    def note(self, batch):
        if len(used) == stop:
            raise RunError("the machine is gone")
        used.append({float(group["lr"]) for group in self.optimizer.param_groups})
        update(self, batch)

    monkeypatch.setattr(Step, "__call__", note)
    config = tiny_config("schedule.warmup_steps=4", f"schedule.kind={kind}", "checkpoint_every=1")
    if stop is not None:
        with pytest.raises(RunError):
            train_quietly(config, tmp_path / "run")
        stop = None
    train_quietly(config, tmp_path / "run")
    assert [len(rates) for rates in used] == [1] * 12
    wanted = [textbook_rate(done, kind) for done in range(12)]
    assert [rate for (rate,) in used] == pytest.approx(wanted, rel=1e-6)
    logged = {line["step"]: line["lr"] for line in curve(tmp_path / "run") if "lr" in line}
    assert logged == pytest.approx({step: wanted[step - 1] for step in (5, 10, 12)})
