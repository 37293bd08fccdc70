"""What ``flashpoint study run`` shows: a table on a terminal, lines elsewhere, then verdicts."""

import io
import re

import pytest
from lab.report.run_folders import make_run
from lab.study.tiny import STUDY, settle, training
from rich.console import Console

from flashpoint.lab.cli.study_view import Progress, draw_findings
from flashpoint.lab.runs import trials
from flashpoint.lab.study.outcome import Outcome


@pytest.fixture
def standing(tmp_path):
    """Trials in all usual states, with the files that such trials have."""
    states = {
        **{"relu": "finished", "softmax": "running", "broken": "failed"},
        **{"later": "waiting", "last": "waiting"},
    }
    folders = settle(tmp_path / "tiny", [training(name) for name in states])
    for folder, name in zip(folders[:2], states, strict=False):
        made = make_run(tmp_path / name, attention=name, top1=0.9123)
        for file in made.iterdir():
            file.rename(folder / file.name)
    (folders[1] / "record.json").unlink()
    (folders[1] / "config.yaml").write_text("steps: 1200\n")
    trials.record_failure(folders[2], "the loss was not finite.")
    return dict(zip(folders, states.values(), strict=True))


def terminal(columns=110, rows=30):
    return Console(
        file=io.StringIO(), record=True, force_terminal=True, width=columns, height=rows
    )


def show(standing, console):
    """The lines of the table after a minute."""
    progress = Progress(console, finished=4)
    progress.show(standing)
    console.export_text()  # forgets what was shown on the way
    console.print(progress._draw(standing, 60.0))
    return console.export_text().splitlines()


def test_table_shows_every_trial(standing):
    lines = show(standing, terminal())
    finished, running, failed, *_ = (line for line in lines if "tiny/" in line)
    assert "relu-seed0" in finished
    assert "top1 91.23%, top5 99.00%, loss 0.1, 15.0 s" in finished
    for part in ("softmax-seed0", "running", "300/1200", "top1 91.23%", "45.0 s left"):
        assert part in running
    assert "the loss was not finite." in failed
    assert lines[-1].startswith("5 of 9 finished, 1 running, 1 failed, 2 waiting; 1 min 00 s, ab")


def test_table_fits_the_terminal_and_leaves_out_what_waits(standing):
    lines = show(standing, terminal(columns=60, rows=9))
    text = "\n".join(lines)
    assert len(lines) < 9
    assert all(len(line) <= 60 for line in lines)
    assert "softmax" in text
    assert "broken" in text
    assert "later" not in text


def test_trial_that_was_stopped_is_shown_and_counted(standing):
    later = list(standing)[3]
    lines = show(standing | {later: "stopped"}, terminal(rows=9))
    assert any("later-seed0" in line and "stopped" in line for line in lines)
    assert lines[-1].startswith("5 of 9 finished, 1 running, 1 stopped, 1 failed, 1 waiting; ")


def test_file_that_is_half_written_does_not_stop_the_view(standing):
    running = next(folder for folder, status in standing.items() if status == "running")
    (running / "metrics.jsonl").write_text('{"kind": "tr')
    (running / "config.yaml").write_text("steps: [")
    assert any("softmax" in line and "running" in line for line in show(standing, terminal()))


def test_elsewhere_every_event_is_a_line(standing, capsys):
    with Progress(Console(width=60), finished=0) as progress:
        progress.show(dict.fromkeys(standing, "waiting"))
        progress.show(standing)
        progress.show(standing)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("s  ", 1)[1] for line in lines] == [
        "tiny/relu-seed0 finished top1 91.23%, top5 99.00%, loss 0.1, 15.0 s",
        "tiny/softmax-seed0 running",
        "tiny/broken-seed0 failed the loss was not finite.",
    ]


def test_findings_are_counted_and_judged():
    outcomes = [
        Outcome(
            name=f"{name}{seed}",
            factors={"attention": name},
            status="finished",
            numbers={"top1": top1 + seed / 100},
        )
        for name, top1 in (("relu", 0.9), ("few", 0.5))
        for seed in range(3)
    ]
    outcomes.append(
        Outcome(name="bad", factors={"attention": "x"}, status="failed", reason="no [b]disk")
    )
    console = terminal(100)
    console.print(draw_findings("tiny", outcomes, STUDY.findings(outcomes)))
    text = console.export_text()
    assert "tiny: 6 finished, 1 failed" in text
    assert "failed bad: no [b]disk" in text
    assert re.search(
        r"supports  More steps help\. 0\.400 \(0\.3\d\d to 0\.4\d\d\) of top-1\.\s", text
    )


def test_one_seed_is_shown_without_an_interval():
    outcomes = [
        Outcome(name=name, factors={"attention": name}, status="finished", numbers={"top1": top1})
        for name, top1 in (("relu", 0.9), ("few", 0.5))
    ]
    console = terminal(100)
    console.print(draw_findings("tiny", outcomes, STUDY.findings(outcomes)))
    assert "More steps help. 0.4 of top-1. 1 of at least 3 seeds." in console.export_text()
