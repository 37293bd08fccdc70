"""Calls take turns, short ones are repeated, long ones are not wasted."""

import pytest

from flashpoint.bench import timing
from flashpoint.bench.timing import Budget, interleave, summarize, time_on_cpu, timer_for
from flashpoint.errors import UnsupportedError

MANY = Budget(rounds=6, seconds=1e9)


class FakeMachine:
    """Calls that take a stated time and leave a trace; timing them takes none."""

    def __init__(self, **durations_s):
        self.durations_s = durations_s
        self.trace = []
        self.clock_s = 0.0

    def calls(self):
        return {name: lambda name=name: self.run(name) for name in self.durations_s}

    def run(self, name):
        self.trace.append(name)
        self.clock_s += self.durations_s[name]
        return f"result of {name}"

    def timer(self, call, repeats):
        start_s = self.clock_s
        for _ in range(repeats):
            call()
        return self.clock_s - start_s


def test_every_round_has_every_call_once_and_nobody_always_leads():
    machine = FakeMachine(a=0.5, b=0.5, c=0.5)
    interleave(machine.calls(), MANY, machine.timer)
    timed = machine.trace[-18:]
    rounds = [timed[start : start + 3] for start in range(0, 18, 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert {order[0] for order in rounds} == {"a", "b", "c"}
    before_b = {order[order.index("b") - 1] for order in rounds if order[0] != "b"}
    assert before_b == {"a", "c"}


def test_percentiles_are_those_of_the_samples():
    found = summarize([6.0, 1.0, 2.0, 5.0, 4.0, 3.0], repeats=7)
    assert (found.p20_s, found.median_s, found.p80_s) == (2.0, 3.5, 5.0)
    assert (found.rounds, found.repeats) == (6, 7)


def test_short_calls_fill_a_sample():
    machine = FakeMachine(tiny=1e-5, medium=0.02)
    found = interleave(machine.calls(), MANY, machine.timer)
    assert found["tiny"].repeats == pytest.approx(timing.MIN_SAMPLE_S / 1e-5, rel=0.01)
    assert found["tiny"].median_s == pytest.approx(1e-5)
    assert found["medium"].repeats == 1


def test_long_calls_run_no_more_than_the_fewest_rounds():
    machine = FakeMachine(long=10.0, longer=14.0)
    found = interleave(machine.calls(), Budget(rounds=20, seconds=1.0), machine.timer)
    assert machine.trace.count("long") == machine.trace.count("longer") == timing.MIN_ROUNDS
    assert found["longer"].rounds == timing.MIN_ROUNDS
    assert found["longer"].median_s == pytest.approx(14.0)


def test_budget_ends_the_rounds():
    machine = FakeMachine(a=0.3, b=0.2)
    found = interleave(machine.calls(), Budget(rounds=100, seconds=5.0), machine.timer)
    assert found["a"].rounds == 10


def test_first_result_is_shown_before_anything_is_timed():
    machine = FakeMachine(a=0.5, b=0.5)
    shown = []
    interleave(machine.calls(), MANY, machine.timer, lambda *seen: shown.append(seen))
    assert shown == [("a", "result of a"), ("b", "result of b")]


def test_cpu_timer_counts_all_calls():
    calls = []
    assert time_on_cpu(lambda: calls.append(1), 5) > 0
    assert len(calls) == 5


def test_unknown_device_has_no_timer():
    with pytest.raises(UnsupportedError, match="timing on device 'tpu' is not available"):
        timer_for("tpu")
