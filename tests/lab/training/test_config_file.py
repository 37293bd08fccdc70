"""Configs from files and from the command line: names and types are checked."""

import dataclasses

import broken_files
import pytest
import yaml
from hypothesis import given, settings
from lab.training.runs import TINY, tiny_config

from flashpoint.errors import InputError
from flashpoint.lab.runs.schema import plain
from flashpoint.lab.training import config_file
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.vision import VisionTask


def test_config_survives_a_file(tmp_path):
    config = tiny_config("model.layer_scale=1e-4")
    path = tmp_path / "config.yaml"
    path.write_text(config_file.dump(config))
    assert plain(config_file.load(path)) == plain(config)


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny_config().seed = 3


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ("optimizer.lr=1e-3", "optimizer.lr", 1e-3),
        ("optimizer.lr=1", "optimizer.lr", 1.0),
        ("optimizer.betas=[0.9, 0.98]", "optimizer.betas", (0.9, 0.98)),
        ("data.augmentation.flip=true", "data.augmentation.flip", True),
        ("data.labels=null", "data.labels", None),
        ("seed=7", "seed", 7),
        ("loss=sigmoid", "loss", "sigmoid"),
        ("data.train=a=b", "data.train", "a=b"),
    ],
)
def test_override_is_read_by_the_type_of_its_field(change, path, value):
    found = tiny_config(change)
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("changes", "attention"),
    [
        (["model.attention=softmax"], "softmax"),
        (
            ["model.attention=relu", "model.attention.alpha=0.5"],
            {"activation": "relu", "alpha": 0.5},
        ),
        (["model.attention={activation: gelu}"], {"activation": "gelu"}),
        (["model.attention=relu4/sum"], "relu4/sum"),
        (
            ["model.attention=relu4/sum", "model.attention.gain=learned"],
            {"activation": "relu4", "normalize": "sum", "gain": "learned"},
        ),
    ],
)
def test_attention_may_be_a_word_or_a_section(changes, attention):
    assert tiny_config(*changes).model.settings["attention"] == attention


def test_model_may_be_a_word():
    values = {**TINY, "model": "vit_ti4"}
    assert config_file.parse(values).model.name == "vit_ti4"
    assert config_file.parse(values, ["model.pool=map"]).model.to_dict() == {
        "name": "vit_ti4",
        "pool": "map",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "optimizer.lrr=1",
            "optimizer.lrr is unknown. Did you mean 'optimizer.lr'? Known: betas,",
        ),
        ("data.flipp=true", "data.flipp is unknown. Did you mean 'data.augmentation.flip'? "),
        ("model.atention=relu", "model.atention is unknown. Did you mean 'model.attention'? "),
        ("bach_size=3", "bach_size is unknown. Did you mean 'batch_size'?"),
        ("batch_size=true", "batch_size=True must be a whole number."),
        ("batch_size=1.5", "batch_size=1.5 must be a whole number."),
        ("batch_size=many", "batch_size='many' must be a whole number."),
        ("optimizer.lr=true", "optimizer.lr=True must be a number."),
        ("optimizer.lr=fast", "optimizer.lr='fast' must be a number."),
        ("data.augmentation.flip=1", "data.augmentation.flip=1 must be true or false."),
        ("data.train=3", "data.train=3 must be text."),
        ("data.labels=3", "data.labels=3 must be null or text."),
        ("loss=sigmod", "loss='sigmod' must be 'sigmoid' or 'softmax'. Did you mean 'sigmoid'?"),
        ("model.attention.alpha=lerned", "model.attention.alpha='lerned' must be 'learned'"),
        ("model.attention=gelu/sum", "model.attention: normalize='sum' divides by sums"),
        (
            "model.attention={normalize: sums}",
            "model.attention.normalize='sums' must be 'length' or 'sum'",
        ),
        ("model.attention=rellu", "model.attention: activation='rellu' is unknown. Did you mean"),
        ("model.depth=two", "model.depth='two' must be a whole number."),
        ("model.name=vit_x16", "model: model 'vit_x16' is unknown. Did you mean"),
        ("model.name=3", "model.name=3 must be the name of a model"),
        ("model.image_size=16", "model.image_size=16 differs from data.image_size=8."),
        ("data.image_size=9", "model: image_size=9 is not a multiple of patch_size=4."),
        ("data.image_size=0", "data.image_size=0 must be a whole number from 1 to 8,192."),
        ("schedule=3", "schedule must be a section, not 3."),
        ("schedule.warmup_share=0.1", "schedule: warmup_steps=2 and warmup_share=0.1 are both"),
        ("schedule.warmup_steps=-1", "schedule: warmup_steps=-1 must be a whole number from 0 to"),
        ("optimizer.betas=[0.9]", "optimizer.betas=[0.9] must be a list of 2 values, each a num"),
        ("optimizer.betas=[0.9, x]", "optimizer.betas[1]='x' must be a number."),
        (
            "optimizer.betas=[0.9, 1.0]",
            "optimizer: betas[1]=1.0 must be a number from 0 to",
        ),
        ("optimizer.lr=0", "optimizer: lr=0.0 must be a number above 0, at most 1e+06."),
        ("epochs=2", "epochs=2.0 and steps=12: exactly one must be set"),
        ("steps=0", "steps=0 must be a whole number from 1 to 1,000,000,000."),
        ("steps=null", "epochs=None and steps=None: exactly one must be set"),
        ("log_every=0", "log_every=0 must be a whole number from 1 to 1,000,000,000."),
        (
            "task=visoin",
            "task='visoin' is unknown. Did you mean 'vision'? Known: vision, text, language, "
            "adapt, adapt_language.",
        ),
        ("data.train", "--set 'data.train' must be KEY=VALUE"),
        ("a..b=1", "--set 'a..b=1' must be KEY=VALUE"),
        ("steps.x=1", "--set 'steps.x=1': steps is 12, not a section."),
        ("seed=[", "--set 'seed=[': '[' is not a YAML value: "),
        ("seed=2026-13-45", "--set 'seed=2026-13-45': '2026-13-45' is not a YAML value: "),
    ],
)
def test_wrong_override_is_one_line_with_its_path(change, message):
    with pytest.raises(InputError) as error:
        tiny_config(change)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert str(error.value) == str(error.value).strip()


@pytest.mark.parametrize(
    "change",
    [
        *("model=&a {name: *a}", "model=&a [*a]", "data=" + "[" * 3_000, "seed=" + "9" * 5_000),
        *("model." * 3_000 + "x=1", "data." * 3_000 + "train=x", "x" * 5_000 + "=1", "a\nb=1"),
        *(
            "model.name='\\ud800'",
            'model.name="\\ud800"',
            "seed=!!int ''",
            "seed=0x" + "f" * 9_999,
        ),
        *("model={" + ", ".join(f"k{n}: 1" for n in range(200_000)) + "}", "seed=1:2:3.5"),
        *("optimizer.lr=" + "9" * 400, "optimizer.lr=.nan", "optimizer.betas=[.inf, 0.9]"),
        *(
            "task={a: b}",
            "task=[vision]",
            "task=null",
            "? [a]: b=1",
            "model.attention={? [a] : b}",
        ),
    ],
    ids=lambda change: change[:20],
)
def test_hostile_override_is_one_short_line(change):
    with pytest.raises(InputError) as error:
        tiny_config(change)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000
    str(error.value).encode()


@given(values=broken_files.changed(plain(tiny_config())), text=broken_files.broken({"seed": 1}))
@settings(max_examples=200, deadline=None)
def test_any_change_of_a_config_is_read_or_one_line(values, text):
    """Sizes that no machine has room for are another matter: nothing is built here."""
    plain_values = yaml.safe_load(values)
    if not isinstance(plain_values, dict):
        plain_values = TINY
    try:
        config_file.parse(plain_values, [f"seed={text.decode(errors='replace')}"])
    except InputError as error:
        said = str(error)
    else:
        said = ""
    assert len(said.splitlines()) <= 1


@pytest.mark.parametrize(("key", "value"), [("image_size", 12), ("channels", 3)])
def test_whole_config_says_to_change_model_and_data_together(key, value):
    """The config.yaml of a run holds the model's size too, which does not follow then."""
    whole = plain(VisionTask(tiny_config(), Ranks()).config)
    with pytest.raises(InputError) as error:
        config_file.parse(whole, [f"data.{key}={value}"])
    assert str(error.value).endswith(
        f" differs from data.{key}={value}. Set both, or leave model.{key} out of the config: "
        "the model follows the data."
    )
    both = config_file.parse(whole, [f"data.{key}={value}", f"model.{key}={value}"])
    assert VisionTask(both, Ranks()).model_config.patch_size == 4


def test_missing_key_is_named():
    data = {"validation": "digits", "image_size": 8, "channels": 1}
    with pytest.raises(InputError, match=r"^data.train is missing."):
        config_file.parse({**TINY, "data": data})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "is not a YAML file: "),
        ("- a", "must hold keys and values, not ['a']."),
        ("", "must hold keys and values, not None."),
    ],
)
def test_file_that_is_no_config_is_refused(tmp_path, content, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(content)
    with pytest.raises(InputError) as error:
        config_file.load(path)
    assert str(error.value).startswith(f"{path} ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_parse_leaves_its_input_alone():
    before = repr(TINY)
    tiny_config("model.attention=softmax", "optimizer.lr=3")
    assert repr(TINY) == before
