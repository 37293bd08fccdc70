"""``flashpoint evaluate`` from the command line."""

import json

import pytest
from lab.data.pictures import make_folder
from lab.evaluation.trained import call, trained_run
from lab.training.language_runs import language_config, require_gpt2
from lab.training.runs import tiny_config, train_quietly

from flashpoint.errors import InputError
from flashpoint.lab.cli import run_arguments
from flashpoint.lab.cli.evaluate import evaluate
from flashpoint.lab.training.run_folder import open_run
from flashpoint.lab.training.vision import VisionTask


def test_numbers_are_shown_and_written(tmp_path):
    run = trained_run()
    out, _ = call(evaluate, run, "--checkpoint", "last", "--json", tmp_path / "a.json")
    record = open_run(run).record
    assert f"{record.validation['top1']:.2%}" in out
    assert "step 60, on digits" in out
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["top1"] == pytest.approx(record.validation["top1"])
    assert (content["step"], content["data"], content["labels"]) == (60, "digits", "all")


def test_json_on_stdout_is_nothing_but_json():
    out, err = call(evaluate, trained_run(), "--json", "-", "--labels", "matching")
    assert json.loads(out)["num_images"] == 360
    assert "top-1" in err


def test_progress_is_a_line_now_and_then_without_a_terminal(monkeypatch):
    _, err = call(evaluate, trained_run())
    assert "Evaluating" not in err
    monkeypatch.setattr(run_arguments, "SECONDS_A_LINE", 0.0)
    _, err = call(evaluate, trained_run(), "--batch-size", "180")
    assert "Evaluating: 180 of 360\nEvaluating: 360 of 360\n" in err


def test_checkpoints_are_told_apart():
    steps = [
        json.loads(call(evaluate, trained_run(), "--json", "-", "--checkpoint", which)[0])
        for which in ("20", "best")
    ]
    assert steps[0]["step"] == 20
    assert steps[1]["step"] == open_run(trained_run()).best_step
    assert steps[0]["loss"] > steps[1]["loss"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--checkpoint", "bst"), "best, last or a step.*'best'"),
        (("--checkpoint", "7"), "step 7.*20, 40, 60"),
        (("--device", "gpu"), "--device 'gpu' .*auto, cpu or cuda"),
        (("--data", "/no/such"), "'/no/such' is neither"),
        (("--classes", "/no/such.txt"), "class list /no/such.txt"),
        (("--json", "/no/such/a.json"), "--json /no/such/a.json"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        call(evaluate, trained_run(), *arguments)
    assert "\n" not in str(caught.value)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not a run's folder"):
        call(evaluate, tmp_path)


def test_best_among_ties_of_accuracy_is_that_of_the_lowest_loss(tmp_path, monkeypatch):
    losses = iter([0.9, 0.3, 0.6])
    with monkeypatch.context() as patch:
        patch.setattr(VisionTask, "validate", lambda *_: {"top1": 0.8, "loss": next(losses)})
        train_quietly(tiny_config("evaluate_every=4"), tmp_path / "run")
    out, _ = call(evaluate, tmp_path / "run", "--json", "-")
    assert json.loads(out)["step"] == 8


def test_folder_that_was_split_is_evaluated_where_it_was_held_out(tmp_path):
    flat = make_folder(tmp_path / "flat", {"a": 20, "b": 20})
    other = make_folder(tmp_path / "other", {"a": 3, "b": 3})
    data = (f"data.train={flat}", f"data.validation={flat}", "data.workers=0")
    record, _ = train_quietly(tiny_config(*data), tmp_path / "run")
    for where in ((), ("--data", flat), ("--data", f"{flat}/../flat")):
        found = json.loads(call(evaluate, tmp_path / "run", *where, "--json", "-")[0])
        assert (found["num_images"], found["data"]) == (4, f"{flat}:held-out")
        assert found["loss"] == pytest.approx(record.best["loss"], rel=1e-4)
    found = json.loads(call(evaluate, tmp_path / "run", "--data", other, "--json", "-")[0])
    assert (found["num_images"], found["data"]) == (6, str(other))
    for file in (flat / "a").iterdir():
        file.rename(file.with_stem(f"x{file.stem}"))
    with pytest.raises(InputError, match=r"flat has other images than .*run began with"):
        call(evaluate, tmp_path / "run")


def test_language_models_have_a_perplexity(tmp_path):
    require_gpt2()
    train_quietly(language_config(), tmp_path / "run")
    out, _ = call(evaluate, tmp_path / "run", "--checkpoint", "last", "--json", tmp_path / "a")
    wanted = open_run(tmp_path / "run").record.validation
    assert f"{wanted['perplexity']:.2f}" in out
    content = json.loads((tmp_path / "a").read_text())
    assert content["loss"] == pytest.approx(wanted["loss"])
    assert content["data"] == "words:60"
    for option in (("--beam", "3"), ("--labels", "matching")):
        with pytest.raises(InputError, match="is a language model: it takes --data"):
            call(evaluate, tmp_path / "run", *option)
