"""Cases in this process and in several: all of them, each once, and none after the time."""

import os
import time

import pytest
import torch

from flashpoint.lab.selfcheck import run as run_module
from flashpoint.lab.selfcheck import session
from flashpoint.lab.selfcheck.draws import Scope, draw_case
from flashpoint.lab.selfcheck.run import Outcome

CPU = Scope("cpu", ("cpu",))


def run(**options):
    """The tally, and all outcomes in their order."""
    seen = []
    tally = session.check(
        session.Request(scope=CPU, **options), lambda tally: seen.append(tally.judged)
    )
    return tally, seen


def test_cases_are_run_in_order():
    tally, seen = run(first=20, cases=5)
    assert tally.judged + tally.refused == 5
    assert seen == sorted(seen)
    assert 20 <= tally.worst.index < 25
    assert not torch.are_deterministic_algorithms_enabled()


def test_groups_go_to_processes_whole():
    scope = Scope("cuda", ("triton",))
    size = scope.group
    request = session.Request(scope=scope, first=4, cases=5 * size, jobs=3)
    shares = [list(request.indices(job, request.first)) for job in range(3)]
    assert sorted(index for share in shares for index in share) == list(range(4, 4 + 5 * size))
    assert shares[0] == [*range(4, size), *range(3 * size, 4 * size)]


def test_time_limit_ends_it():
    tally, _ = run(time_limit=0.0)
    assert tally.judged + tally.refused == 1


def test_interrupt_keeps_what_was_done(monkeypatch):
    def interrupt(case, device):
        if case.index == 3:
            raise KeyboardInterrupt
        return Outcome(case.index, str(case), 0.5)

    monkeypatch.setattr(session, "run_case", interrupt)
    tally, _ = run()
    assert (tally.judged, tally.cut) == (3, "stopped by Ctrl-C")


@pytest.mark.slow
def test_processes_do_all_cases():
    alone, _ = run(cases=6)
    shared, _ = run(cases=6, jobs=2)
    assert (shared.judged, shared.refused) == (alone.judged, alone.refused)
    assert shared.worst.index == alone.worst.index


def die_at_two(request, job, deadline, first, writer):
    """A worker that ends without a word at case 2."""
    for index in request.indices(job, first):
        writer.send(index)
        if index == 2:
            os._exit(7)
        writer.send(Outcome(index, f"case {index}", 0.5))
    writer.send("done")


def sleep_at_two(request, job, deadline, first, writer):
    """A worker whose compiler does not come back from case 2."""
    for index in request.indices(job, first):
        writer.send(index)
        time.sleep(60 * (index == 2))
        writer.send(Outcome(index, f"case {index}", 0.5))
    writer.send("done")


@pytest.mark.slow
def test_case_without_end_is_given_up_soon_after_the_limit(monkeypatch):
    """The verdict on all others comes in time."""
    monkeypatch.setattr(session, "_work", sleep_at_two)
    monkeypatch.setattr(session, "get_context", lambda kind: get_forking())
    monkeypatch.setattr(session, "GRACE_S", 1.0)
    tally, _ = run(cases=6, jobs=2, time_limit=1.0)
    assert tally.seconds < 20
    assert tally.judged == 4  # 0, and 1, 3, 5 of the other process
    assert tally.cut == "1 cases were not done 1 s after the limit"


@pytest.mark.slow
def test_process_that_dies_is_a_miss_and_replaced(monkeypatch):
    monkeypatch.setattr(session, "_work", die_at_two)
    monkeypatch.setattr(session, "get_context", lambda kind: get_forking())
    tally, _ = run(cases=5, jobs=2)
    assert tally.judged == 5
    (miss,) = tally.misses
    assert miss.index == 2
    assert miss.detail == "the process ended with status 7"


def die_at_once(request, job, deadline, first, writer):
    os._exit(3)


def die_after_the_first(request, job, deadline, first, writer):
    index = next(request.indices(job, first))
    writer.send(index)
    writer.send(Outcome(index, f"case {index}", 0.5))
    os._exit(3)


@pytest.mark.parametrize(("work", "judged"), [(die_at_once, 2), (die_after_the_first, 4)])
def test_process_that_dies_between_cases_is_told_and_not_replaced(monkeypatch, work, judged):
    """It would die again without end; what it had done stays judged."""
    monkeypatch.setattr(session, "_work", work)
    monkeypatch.setattr(session, "get_context", lambda kind: get_forking())
    tally, _ = run(cases=6, jobs=2)
    assert tally.judged == judged
    assert [miss.detail for miss in tally.misses] == [
        "the process ended with status 3 between cases; the rest of its share was not run"
    ] * 2


def test_every_case_is_called_twice_where_calls_are_replayed(monkeypatch):
    """The second call has other numbers, and on a GPU it is a replay."""
    drawn = []
    usual = run_module.draw
    monkeypatch.setattr(
        run_module,
        "draw",
        lambda case, call, device: drawn.append(call) or usual(case, call, device),
    )
    cpu = torch.device("cpu")
    run_module.run_case(draw_case(0, 0, CPU), cpu)
    assert drawn[:2] == [0, 1]
    assert run_module._num_calls(draw_case(0, 0, CPU), torch.device("cuda")) == 2


def get_forking():
    """Processes that know what a test has changed."""
    import multiprocessing

    return multiprocessing.get_context("fork")
