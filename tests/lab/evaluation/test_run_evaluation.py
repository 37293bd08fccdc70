"""Accuracy and loss of a run's model: the record's numbers, other data, other classes."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from lab.evaluation.trained import trained_run
from PIL import Image

from flashpoint.errors import InputError
from flashpoint.lab.data.sources import open_source
from flashpoint.lab.evaluation.run_evaluation import class_names, evaluate_run
from flashpoint.lab.runs.beginning import write_data
from flashpoint.lab.training.run_folder import open_run


@pytest.fixture(scope="module")
def run():
    return open_run(trained_run())


@pytest.fixture(scope="module")
def model(run):
    return run.load_model("last")


@pytest.fixture
def folder(tmp_path):
    """The validation digits as class folders under made-up ids; digit d is n0000000{d}."""
    digits = open_source("digits", "validation")
    for i in range(60):
        image, label = digits.read(i)
        place = tmp_path / "val" / f"n{label:08d}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(image)).save(place / f"{i}.png")
    return tmp_path / "val"


@pytest.fixture
def named_run(run, tmp_path):
    """The run as if its classes had been those ids, in the order of the folder's."""
    path = tmp_path / "named"
    path.mkdir()
    write_data(path, {"classes": [f"n{label:08d}" for label in range(10)]})
    return replace(run, path=path)


def count_by_hand(model, indices, columns=None):
    """Top-1 of some validation digits, among some outputs."""
    digits = open_source("digits", "validation")
    right = 0
    for i in indices:
        image, label = digits.read(int(i))
        pixels = torch.tensor(np.asarray(image)).float() / 127.5 - 1.0
        logits = model(pixels.view(1, 1, 8, 8))[0]
        allowed = list(range(10)) if columns is None else columns
        right += allowed[int(logits[allowed].argmax())] == label
    return right / len(indices)


def test_last_checkpoint_gives_the_records_numbers(run, model):
    result = evaluate_run(run, model)
    for name in ("top1", "top5", "loss"):
        assert getattr(result, name) == pytest.approx(run.record.validation[name], abs=1e-6)
    assert (result.num_images, result.num_classes, result.left_out) == (360, 10, 0)
    assert result.top1 == pytest.approx(count_by_hand(model, range(360)))


def test_other_data_are_read_as_the_run_reads_them(named_run, model, folder):
    digits = replace(named_run.config.data, evaluation_view="whole", workers=0)
    other = replace(named_run, config=replace(named_run.config, data=digits))
    result = evaluate_run(other, model, data=str(folder))
    assert result.num_images == 60
    assert result.top1 == pytest.approx(count_by_hand(model, range(60)))


def test_matching_restricts_answers_to_the_datas_classes(named_run, model, folder):
    """Without folders 2 and 5 their outputs may not answer; an unknown folder is left out."""
    shutil.rmtree(folder / "n00000002")
    shutil.rmtree(folder / "n00000005")
    (folder / "n00000003").rename(folder / "n00000777")
    kept = [0, 1, 4, 6, 7, 8, 9]
    labels = open_source("digits", "validation").labels[:60]
    digits = replace(named_run.config.data, evaluation_view="whole", workers=0)
    other = replace(named_run, config=replace(named_run.config, data=digits))
    result = evaluate_run(other, model, data=str(folder), is_matching=True)
    assert result.num_classes == 7
    assert result.unmatched == ("n00000777",)
    assert result.left_out == int((labels == 3).sum())
    assert result.num_images == int(np.isin(labels, kept).sum())
    wanted = count_by_hand(model, np.flatnonzero(np.isin(labels, kept)), kept)
    assert result.top1 == pytest.approx(wanted)
    with pytest.raises(InputError, match="--labels matching"):
        evaluate_run(other, model, data=str(folder))


def test_file_names_the_datas_classes_in_the_models_words(named_run, model, folder, tmp_path):
    """Folders of words, sorted: eight, five, four, ...; the run knows them by ids."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    for label, word in enumerate(words):
        (folder / f"n{label:08d}").rename(folder / word)
    digits = replace(named_run.config.data, evaluation_view="whole", workers=0)
    other = replace(named_run, config=replace(named_run.config, data=digits))
    with pytest.raises(InputError, match=r"have no name in common.*--classes FILE"):
        evaluate_run(other, model, data=str(folder), is_matching=True)
    with pytest.raises(InputError, match=r"class 0 is 'n00000000' .* or --classes FILE"):
        evaluate_run(other, model, data=str(folder))
    classes = tmp_path / "classes.txt"
    classes.write_text("".join(f"n{words.index(word):08d}\n" for word in sorted(words)))
    named = {"data": str(folder), "classes": str(classes)}
    result = evaluate_run(other, model, **named, is_matching=True)
    assert (result.num_images, result.num_classes) == (60, 10)
    assert result.top1 == pytest.approx(count_by_hand(model, range(60)))
    with pytest.raises(InputError, match="Pass --labels matching"):
        evaluate_run(other, model, **named)  # in another order than the model's


def test_file_may_name_the_classes_of_the_runs_own_data(run, model, tmp_path):
    classes = tmp_path / "classes.txt"
    classes.write_text("\n".join("abcdefghij"))
    with pytest.raises(InputError, match=r"no name in common"):
        evaluate_run(run, model, classes=str(classes), is_matching=True)


def test_classes_are_those_that_the_run_began_with(run, named_run, model):
    assert class_names(named_run, model)[3] == "n00000003"
    gone = replace(run.config.data, train="/no/such/folder")
    run = replace(run, config=replace(run.config, data=gone))
    assert class_names(run, model) == [str(i) for i in range(10)]


def test_outputs_beyond_the_datas_classes_are_numbered():
    run = open_run(trained_run(num_classes=12))
    model = run.load_model()
    assert class_names(run, model)[10:] == ["10", "11"]
    assert evaluate_run(run, model).num_classes == 12
    assert evaluate_run(run, model, is_matching=True).num_classes == 10


def test_progress_counts_every_image(run, model):
    counted = []
    evaluate_run(run, model, batch_size=100, on_count=lambda *count: counted.append(count))
    assert counted[-1] == (360, 360)
    assert len(counted) == 4
