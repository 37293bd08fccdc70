"""Calls take turns, short ones are repeated, long ones are not wasted."""

import pytest

from flashpoint.lab.bench import timing
from flashpoint.lab.bench.timing import (
    Budget,
    CpuTimer,
    Sampler,
    Started,
    interleave,
    start,
    summarize,
)

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

    def seconds_of(self, call):
        return self.prepare(call, 1).measure()

    def prepare(self, call, repeats):
        def measure():
            start_s = self.clock_s
            for _ in range(repeats):
                call()
            return self.clock_s - start_s

        return Sampler(measure, repeats, "events")

    def interleave(self, budget):
        started = {name: start(call, self)[0] for name, call in self.calls().items()}
        return interleave(started, budget, self)


def test_every_round_has_every_call_once_and_nobody_always_leads():
    machine = FakeMachine(a=0.5, b=0.5, c=0.5)
    machine.interleave(MANY)
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
    found = machine.interleave(MANY)
    assert found["tiny"].repeats == pytest.approx(timing.MIN_SAMPLE_S / 1e-5, rel=0.01)
    assert found["tiny"].median_s == pytest.approx(1e-5)
    assert found["medium"].repeats == 1


def test_long_calls_run_no_more_than_the_fewest_rounds():
    machine = FakeMachine(long=10.0, longer=14.0)
    found = machine.interleave(Budget(rounds=20, seconds=1.0))
    assert machine.trace.count("long") == machine.trace.count("longer") == timing.MIN_ROUNDS
    assert found["longer"].rounds == timing.MIN_ROUNDS
    assert found["longer"].median_s == pytest.approx(14.0)


def test_budget_ends_the_rounds():
    machine = FakeMachine(a=0.3, b=0.2)
    found = machine.interleave(Budget(rounds=100, seconds=5.0))
    assert found["a"].rounds == 10


def test_start_gives_the_first_result_and_its_time():
    machine = FakeMachine(a=0.5)
    started, result = start(machine.calls()["a"], machine)
    assert (started.first_s, result) == (0.5, "result of a")
    assert machine.trace == ["a"]


def test_first_call_that_compiles_is_not_timed():
    machine = FakeMachine(a=0.5)
    results = iter([("compiled", 9.0), ("again", 0.5)])

    def call():
        result, seconds = next(results)
        machine.clock_s += seconds
        return result

    started, result = start(call, machine, compiles=True)
    assert (started.first_s, result) == (0.5, "compiled")


def test_nothing_started_gives_nothing():
    assert interleave({}, MANY, FakeMachine()) == {}


def test_method_and_calls_of_a_sample_are_those_of_the_sampler():
    class Capped(FakeMachine):
        def prepare(self, call, repeats):
            measure, repeats, _ = super().prepare(call, min(repeats, 4))
            return Sampler(measure, repeats, "graph")

    machine = Capped(a=1e-4)
    found = interleave({"a": Started(machine.calls()["a"], 1e-4)}, MANY, machine)["a"]
    assert (found.method, found.repeats) == ("graph", 4)
    assert found.median_s == pytest.approx(1e-4)


def test_cpu_timer_counts_all_calls():
    calls = []
    sampler = CpuTimer().prepare(lambda: calls.append(1), 5)
    assert sampler.measure() > 0
    assert (len(calls), sampler.repeats, sampler.method) == (5, 5, "clock")
