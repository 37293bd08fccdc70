"""``flashpoint demo``: the twins as real processes, what is shown, and how it goes on."""

import json
import sys

import pytest
import typer
import yaml
from lab.evaluation.trained import call
from lab.report.run_folders import add_attention, make_run
from rich.console import Console
from typer.testing import CliRunner

from flashpoint.errors import InputError
from flashpoint.lab.cli import demo as demo_module
from flashpoint.lab.cli import demo_twins, demo_view
from flashpoint.lab.cli.demo import demo
from flashpoint.lab.cli.demo_twins import Glance, Stopped, Twin, TwinError, train_twins
from flashpoint.lab.cli.demo_view import Progress
from flashpoint.lab.cli.train import train
from flashpoint.lab.training import config_file

TINY = {
    "model": {"name": "vit", "patch_size": 4, "width": 16, "depth": 1, "num_heads": 2,
              "mlp_dim": 16, "attention": "relu"},
    "data": {"train": "digits", "validation": "digits", "image_size": 8, "channels": 1},
    "epochs": 1, "batch_size": 64, "precision": "fp32", "device": "cpu",
}  # fmt: skip


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A demo of seconds in the place of the real one."""
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY))
    monkeypatch.setattr(config_file, "find_published", lambda name: file)
    return file


def run_python(monkeypatch, code):
    """Let twins run this code, as they would run ``flashpoint train``."""
    monkeypatch.setattr(Twin, "command", lambda self, config: [sys.executable, "-c", code])


def stored_twins(folder):
    """Two finished runs with attention, made up."""
    for name, top1 in (("relu", 0.97), ("softmax", 0.98)):
        add_attention(make_run(folder / name, attention=name, top1=top1))
    return folder


@pytest.mark.slow
def test_demo_trains_both_and_shows_them_again_at_once(config, tmp_path, monkeypatch):
    out, _ = call(demo, "--out", tmp_path / "demo")
    for name in ("relu", "softmax"):
        folder = tmp_path / "demo" / name
        record = json.loads((folder / "record.json").read_text())
        assert record["environment"]["threads"] == 1
        assert f"{record['validation']['top1']:.2%}" in out
        assert (folder / "attention" / "maps.png").is_file()
        assert str(folder / "attention" / "maps.png") in out
        assert yaml.safe_load((folder / "config.yaml").read_text())["model"]["attention"][
            "activation"
        ] == name  # fmt: skip
    assert (tmp_path / "demo" / "report.html").stat().st_size > 4e6
    for word in ("top-1", "zero weights", "report.html", "Next:", "inspect", "probe", "train"):
        assert word in out
    monkeypatch.setattr(demo_twins, "train_twins", None)  # neither trained
    monkeypatch.setattr(demo_module, "_look_at", None)  # nor looked at again
    again, _ = call(demo, "--out", tmp_path / "demo")
    assert "holds both runs already. To train them again: --fresh" in again
    assert out.splitlines()[-20:] == again.splitlines()[-20:]


def test_fresh_removes_the_runs_of_a_demo_and_nothing_else(config, tmp_path, monkeypatch):
    stored_twins(tmp_path)
    (tmp_path / "mine.txt").write_text("keep")
    (tmp_path / "relu.log").write_text("old")
    run_python(monkeypatch, "raise SystemExit('no')")
    with pytest.raises(TwinError):
        call(demo, "--out", tmp_path, "--fresh")
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == []
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_command_of_a_twin_is_one_that_train_takes(config, tmp_path):
    words = Twin("softmax", tmp_path / "softmax").command(config)
    assert words[:4] == [sys.executable, "-m", "flashpoint", "train"]
    out, _ = call(train, *words[4:], "--dry-run")
    assert yaml.safe_load(out)["model"]["attention"]["activation"] == "softmax"


def test_real_config_is_found_and_is_small():
    content = yaml.safe_load(config_file.find_published("digits").read_text())
    assert content["data"]["train"] == "digits"
    assert content["model"]["depth"] <= 6


def test_failing_twin_ends_both_with_its_last_line(tmp_path, monkeypatch):
    run_python(monkeypatch, "import sys; sys.exit('error: no such thing.')")
    with pytest.raises(TwinError, match=r"the relu run failed: no such thing\. All .*relu\.log"):
        train_twins([Twin("relu", tmp_path / "relu")], tmp_path / "a", lambda glances: None)


def test_twins_are_asked_to_stop_when_one_fails(tmp_path, monkeypatch):
    """The other saves itself at SIGTERM, and is waited for."""
    code = """
import signal, sys, time
from pathlib import Path
def stop(*_):
    time.sleep(0.2)
    Path({saved!r}).write_text("saved")
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
Path({ready!r}).write_text("")
time.sleep(60)
"""
    saved, ready = tmp_path / "saved", tmp_path / "ready"
    fail = f"""
import time
from pathlib import Path
while not Path({str(ready)!r}).exists(): time.sleep(0.01)
raise SystemExit("broken")
"""
    codes = {"relu": code.format(saved=str(saved), ready=str(ready)), "softmax": fail}
    monkeypatch.setattr(
        Twin, "command", lambda self, config: [sys.executable, "-c", codes[self.name]]
    )
    twins = [Twin(name, tmp_path / name) for name in codes]
    with pytest.raises(TwinError, match="softmax run failed: broken"):
        train_twins(twins, tmp_path / "a", lambda glances: None)
    assert saved.read_text() == "saved"


def test_interrupted_demo_says_how_to_go_on(config, tmp_path, monkeypatch):
    def interrupt(twins, config, on_look):
        with demo_twins._started(twins, config):
            raise KeyboardInterrupt

    run_python(monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(demo_twins, "train_twins", interrupt)
    app = typer.Typer()
    app.command()(demo)
    result = CliRunner().invoke(app, ["--out", str(tmp_path / "demo")])
    assert result.exit_code == 75
    assert "the same command goes on" in result.stderr


def test_twin_that_saved_itself_stops_the_demo(tmp_path, monkeypatch):
    run_python(monkeypatch, "raise SystemExit(75)")
    with pytest.raises(Stopped, match="the same command goes on"):
        train_twins([Twin("relu", tmp_path / "relu")], tmp_path / "a", lambda glances: None)


def test_look_reads_how_far_a_run_is(tmp_path):
    twin = Twin("relu", tmp_path / "relu")
    assert twin.look() == Glance()
    make_run(twin.folder, top1=0.9)
    (twin.folder / "record.json").unlink()
    (twin.folder / "config.yaml").write_text("{steps: 400}")
    seen = twin.look()
    assert (seen.share, seen.step) == (0.75, 300)
    assert seen.accuracies == pytest.approx((0.3, 0.6, 0.9))
    (twin.folder / "metrics.jsonl").write_text('{"kind": "train", "step": 3, "epoch"')
    assert twin.look().step == 0


def test_progress_is_a_line_for_every_fifth_when_piped():
    console = Console(width=80, record=True, force_terminal=False)
    with Progress(console) as progress:
        for step in range(101):
            accuracies = (step / 100,) if step >= 10 else ()
            progress.show({"relu": Glance(step / 100, step, 0.5, 9.0, accuracies)})
    lines = console.export_text().splitlines()
    assert [line.split(",")[1] for line in lines] == [
        f" step {step}" for step in (20, 40, 60, 80, 100)
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_live_bars_fit_the_terminal(width):
    console = Console(width=width, record=True, force_terminal=True, legacy_windows=False)
    glances = {
        name: Glance(0.5, 10, 0.123, 900.0, (0.1, 0.5, 0.9)) for name in ("relu", "softmax")
    }
    console.print(demo_view._bars(glances, 12.0))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert "about 12 s left" in lines[-1]


def test_commands_can_be_copied(monkeypatch, tmp_path):
    monkeypatch.setattr(demo_view.shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "flashpoint")])
    monkeypatch.chdir(tmp_path)
    assert demo_view.program_name() == "bin/flashpoint"
    monkeypatch.setattr(sys, "argv", ["pytest"])
    assert demo_view.program_name() == "python -m flashpoint"


def test_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--out .*file.demo cannot be made: Not a directory"):
        call(demo, "--out", tmp_path / "file" / "demo")
