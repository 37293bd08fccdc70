"""What the user sees."""

import io

from rich.console import Console

from flashpoint.lab.training.progress import Progress


def make(is_terminal, is_shown=True):
    file = io.StringIO()
    console = Console(file=file, force_terminal=is_terminal, width=140)
    return Progress(console, name="demo", unit="images", total=200, is_shown=is_shown), file


def line(step, **changes):
    return {
        "kind": "train",
        "step": step,
        "loss": 1.25,
        "images_per_s": 12345.6,
        "skipped": 0,
        "utilisation": None,
        **changes,
    }


def test_terminal_shows_a_bar_with_loss_speed_and_time_left():
    progress, file = make(is_terminal=True)
    progress.start(0)
    progress.step(99)
    progress.log(line(100, utilisation=0.4), seconds_left=30.0)
    progress.stop()
    text = file.getvalue()
    for part in ("demo", "100/200", "loss 1.25", "12,346 images/s", "40% of the device", "left"):
        assert part in text


def test_elsewhere_lines_come_now_and_then(monkeypatch):
    clock = iter([0.0, 0.0, 1.0, 6.0, 6.0, 7.0, 20.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    progress, file = make(is_terminal=False)
    progress.start(0)
    for step in (10, 20, 30):
        progress.log(line(step), seconds_left=90.0)
    progress.log(line(200), seconds_left=0.0)
    steps = [text.split()[2] for text in file.getvalue().splitlines()]
    assert steps == ["20/200,", "200/200,"]
    assert "loss 1.25, 12,346 images/s, 0:01:30 left" in file.getvalue()


def test_time_that_is_no_step_counts_for_nothing(monkeypatch):
    """A model that compiles for two minutes before its first step of a second has 199 s left."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress, file = make(is_terminal=False)
    progress.start(0)
    with progress.paused("compiling"):
        now[0] = 120.0
    now[0] = 121.0
    progress.step(1)
    assert file.getvalue() == "compiling\ndemo: step 1/200, about 0:03:19 left\n"


def test_bad_updates_and_missing_losses_are_shown():
    progress, file = make(is_terminal=False)
    progress.log(line(200, loss=None, skipped=3), seconds_left=0.0)
    assert "no finite loss" in file.getvalue()
    assert "3 updates left out" in file.getvalue()


def test_waiting_for_data_is_shown_where_it_matters():
    progress, file = make(is_terminal=False)
    progress.log(line(200, data_wait=0.02), seconds_left=0.0)
    assert "waiting" not in file.getvalue()
    progress.log(line(200, data_wait=0.231), seconds_left=0.0)
    assert "images/s, waiting for data 23%," in file.getvalue()


def test_validation_is_a_line_in_percent():
    progress, file = make(is_terminal=False)
    progress.validated({"kind": "validation", "step": 50, "top1": 0.9812, "loss": 0.05})
    assert file.getvalue() == "demo: validation at step 50: top1 98.12%, loss 0.05\n"


def test_other_processes_are_silent():
    progress, file = make(is_terminal=True, is_shown=False)
    progress.start(0)
    progress.log(line(100), seconds_left=1.0)
    progress.say("hello")
    progress.stop()
    assert file.getvalue() == ""


def test_slow_steps_are_a_line_now_and_then(monkeypatch):
    """Someone with a CPU sees within ten seconds or a step that it goes on, and for how long."""
    clock = iter([0.0, 5.0, 30.0, 35.0, 41.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    progress, file = make(is_terminal=False)
    progress.start(100)
    for step in (101, 102, 103):
        progress.step(step)
    assert file.getvalue() == (
        "demo: step 101/200, about 0:41:15 left\ndemo: step 103/200, about 0:19:24 left\n"
    )
