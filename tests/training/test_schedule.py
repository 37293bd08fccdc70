"""The learning rate as a function of the step."""

import math

import pytest

from flashpoint.errors import InputError
from flashpoint.training.config import ScheduleConfig
from flashpoint.training.schedule import learning_rate, warmup_steps


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
