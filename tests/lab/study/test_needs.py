"""What trials need and cost, found in their plans."""

import pytest
from lab.study.tiny import SETTINGS, measurement, plan, training

from flashpoint.errors import InputError
from flashpoint.lab.study.needs import Need, needs_of, require_data, training_flops
from flashpoint.lab.study.plan import options_of, settings_of


def text(place):
    return training("text", task="text", data={"train": place, "validation": place})


def test_places_are_found_in_configs_at_any_depth_and_once():
    config = {"task": "text", "data": {"train": "recall:2", "validation": "jsonl:x"}}
    trials = [*plan(SETTINGS), measurement("time", "add", configs={"relu": config})]
    assert needs_of(trials) == [
        Need("digits", "images"),
        Need("recall:2", "documents"),
        Need("jsonl:x", "documents"),
    ]


@pytest.mark.parametrize("place", ["documents:docs", "documents:docs:fit", "docs"])
def test_documents_must_be_prepared(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="docs holds no prepared documents"):
        require_data([text(place)])
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "summary.json").write_text("{}")
    require_data([text(place)])


def language(place):
    return training("language", task="language", data={"train": place, "validation": place})


@pytest.mark.parametrize("place", ["passages:text", "passages:text:train", "text"])
def test_passages_must_be_there(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"text is no folder of passages.*prepare linux-doc"):
        require_data([language(place)])
    (tmp_path / "text").mkdir()
    require_data([language(place), language("words:20")])


def test_scale_without_data_asks_for_the_kind_that_is_missing():
    with pytest.raises(InputError, match="pass --documents WHERE"):
        require_data([text("")])
    with pytest.raises(InputError, match="pass --passages WHERE"):
        require_data([language("")])
    with pytest.raises(InputError, match="pass --images WHERE"):
        require_data([training("x", data={"train": "", "validation": ""})])


def test_folder_of_images_and_made_up_data_are_left_to_the_trial(tmp_path):
    require_data([training("x", data={"train": str(tmp_path)}), text("recall:2-8")])


def test_cost_is_that_of_every_training():
    flops = training_flops(plan(SETTINGS))
    assert flops[0] == flops[1] == 3 * flops[2] == 3 * flops[3] > 0
    assert flops[4] == 0


def test_options_give_the_settings_back():
    settings = settings_of("paper", images="dir", documents="docs", passages="text", seeds=5)
    words = options_of(settings)
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options == {
        **{"--scale": "paper", "--seeds": "5"},
        **{"--images": "dir", "--documents": "docs", "--passages": "text"},
    }
    assert options_of(settings_of("small")) == ("--scale", "small")
