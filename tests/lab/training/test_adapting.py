"""Runs that bring a softmax ViT to other attention: stages, fine-tuning, going on."""

import json
import shutil

import pytest
import safetensors.torch
import torch
from lab.training.runs import (
    assert_same_run,
    final,
    interrupt_at,
    tiny_config,
    train_quietly,
)
from torch import nn

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.runs.failure import Preempted
from flashpoint.lab.training import config_file
from flashpoint.lab.training.adapter import distance
from flashpoint.lab.training.adapting import AdaptTask
from flashpoint.lab.training.blending import Blend, set_share
from flashpoint.lab.training.low_rank import add_low_rank, merged
from flashpoint.lab.training.matching import layer_errors, match_layers
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.run_folder import open_run
from flashpoint.lab.training.vit_layers import ViTLayers, attention_layers, calibrate_vit
from flashpoint.layers.attention import Attention
from flashpoint.layers.spec import AttentionSpec
from flashpoint.models.vit import ViT, ViTConfig

SIZES = {
    "image_size": 8,
    "patch_size": 2,
    "channels": 1,
    "width": 16,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 32,
}
LEARNED = {"gain": "learned_per_head", "bias": "learned_per_head"}
SPEC = {"activation": "relu4", "normalize": "sum", **LEARNED}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A softmax run."""
    out = tmp_path_factory.mktemp("adapt") / "teacher"
    train_quietly(tiny_config("model.attention=softmax", "model.patch_size=2", "steps=24"), out)
    return out


def adapting(teacher, *changes):
    """The config of a small run that adapts it."""
    values = config_file.plain(open_run(teacher).config)
    values["model"]["attention"] = SPEC
    values |= {"task": "adapt", "weights": str(teacher), "steps": 12}
    values["adapt"] = {"match_steps": 3, "anneal_share": 0.5}
    return config_file.parse(values, changes)


@pytest.fixture(scope="module")
def adapted(teacher, tmp_path_factory):
    """The small run, never interrupted."""
    out = tmp_path_factory.mktemp("adapt") / "adapted"
    _, said = train_quietly(adapting(teacher), out)
    return out, said


def pair(seed=0, spec=SPEC, **sizes):
    """A softmax ViT whose tokens attend unevenly, and one with its weights and other attention."""
    torch.manual_seed(seed)
    config = ViTConfig(**SIZES | sizes, attention="softmax")
    one = ViT(config)
    with torch.no_grad():
        for layer in attention_layers(one):
            layer.qkv.weight[:32].mul_(3.0)
            layer.qkv.bias.normal_(std=0.3)
    two = ViT(ViTConfig(**SIZES | sizes, attention=AttentionSpec.parse(spec)))
    two.load_state_dict(one.state_dict(), strict=False)
    return one.eval(), two.eval()


def draw_images(count=6, seed=1):
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


# Stages.


@pytest.mark.parametrize("qk_norm", ["none", "layer"])
@pytest.mark.parametrize("word", ["relu", "relu4/sum", "sigmoid"])
def test_calibration_brings_every_layer_nearer(word, qk_norm):
    activation, _, normalize = word.partition("/")
    spec = {"activation": activation, "normalize": normalize or "length", **LEARNED}
    teacher, student = pair(spec=spec, qk_norm=qk_norm)
    images = draw_images()
    before = layer_errors(ViTLayers(), teacher, student, images)
    others = {n: p.clone() for n, p in student.state_dict().items() if "attn" not in n}
    calibrate_vit(teacher, student, [images])
    after = layer_errors(ViTLayers(), teacher, student, images)
    assert all(a < b for a, b in zip(after, before, strict=True))
    assert all(student.state_dict()[name].equal(weight) for name, weight in others.items())


def test_a_scale_goes_into_q_alone():
    teacher, student = pair(qk_norm="none")
    before = {name: weight.clone() for name, weight in student.state_dict().items()}
    calibrate_vit(teacher, student, [draw_images()])
    for number, layer in enumerate(attention_layers(student)):
        kernel = before[f"blocks.{number}.attn.qkv.weight"]
        ratio = (layer.qkv.weight[:16] / kernel[:16]).view(2, 8, 16)  # of each head
        torch.testing.assert_close(ratio, ratio[:, :1, :1].expand_as(ratio))
        assert layer.qkv.weight[16:].equal(kernel[16:])


def test_matching_trains_q_k_and_numbers_alone_and_lowers_the_error():
    teacher, student = pair()
    images = draw_images()
    calibrate_vit(teacher, student, [images])
    before = {name: weight.clone() for name, weight in student.state_dict().items()}
    error = sum(layer_errors(ViTLayers(), teacher, student, images))
    steps = list(
        match_layers(ViTLayers(), teacher, student, iter([images] * 20), steps=20, lr=3e-3)
    )
    assert [step for step, _ in steps] == list(range(1, 21))
    assert sum(layer_errors(ViTLayers(), teacher, student, images)) < 0.9 * error
    for name, weight in student.state_dict().items():
        same = weight.equal(before[name])
        if name.endswith(("qkv.weight", "qkv.bias")):
            assert weight[32:].equal(before[name][32:])  # v
            assert not weight[:16].equal(before[name][:16])  # q
        else:
            learns = any(word in name for word in ("attn.gain", "attn.bias", "_norm"))
            assert same != learns, name
    assert all(parameter.grad is None for parameter in student.parameters())
    assert not any(p._backward_hooks for p in student.parameters())


# Annealing.


def test_a_share_goes_from_softmax_to_the_layers_own_attention():
    teacher, student = pair()
    calibrate_vit(teacher, student, [draw_images()])
    student.train()
    images = draw_images()
    own = student(images)
    for share, expected in ((0.0, teacher(images)), (1.0, own)):
        set_share(student, torch.tensor(share))
        torch.testing.assert_close(student(images), expected, rtol=1e-4, atol=1e-5)
    names = list(student.state_dict())
    set_share(student, torch.tensor(0.5))
    half = student.features(images)
    set_share(student, None)
    assert names == list(student.state_dict())
    assert not any(isinstance(module, Blend) for module in student.modules())
    assert not torch.allclose(half, student.features(images))


def test_a_blend_is_for_training_only():
    teacher, student = pair()
    images = draw_images()
    expected = student.features(images)
    set_share(student, torch.tensor(0.0))
    torch.testing.assert_close(student.eval().features(images), expected)
    torch.testing.assert_close(student.train().features(images), teacher.features(images))


def test_a_blend_has_the_gradients_of_both():
    layer = Attention(8, 2, AttentionSpec(**SPEC)).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    set_share(layer, torch.tensor(0.3, dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda x, _: layer(x), (x, layer.qkv.weight))


def test_a_learned_alpha_is_not_annealed():
    layer = nn.ModuleList([Attention(8, 2, AttentionSpec(alpha="learned"))])
    with pytest.raises(UnsupportedError, match=r"annealing needs an alpha .*anneal_share=0"):
        set_share(layer, torch.tensor(0.5))


# Distillation.


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_distance_is_a_divergence_that_hardly_depends_on_a_high_temperature(kind):
    answers = torch.randn(4, 5, dtype=torch.float64)
    assert distance(answers, answers, kind, 2.0).abs().max() < 1e-5
    logits = torch.randn(4, 5, dtype=torch.float64)
    assert (distance(logits, answers, kind, 2.0) > 0).all()
    warm, hot = (distance(logits, answers, kind, t).sum() for t in (10.0, 20.0))
    torch.testing.assert_close(warm, hot, rtol=0.05, atol=1e-3)


def test_softmax_distance_is_kullback_and_leiblers():
    logits, answers = torch.randn(2, 4, 5)
    p, q = ((x / 3).softmax(-1) for x in (answers, logits))
    expected = 9 * (p * (p / q).log()).sum(-1)
    torch.testing.assert_close(distance(logits, answers, "softmax", 3.0), expected)


# Low rank.


def test_low_rank_updates_merge_into_plain_weights():
    _, model = pair()
    images = draw_images()
    names = set(model.state_dict())
    expected = model.features(images)
    add_low_rank(model, 2)
    torch.testing.assert_close(model.features(images), expected)
    learned = {name for name, p in model.named_parameters() if p.requires_grad}
    assert not any(name.endswith(("original", "pos_embed", "head.weight")) for name in learned)
    assert "blocks.0.attn.gain" in learned
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("0.b"):
                parameter.normal_(std=0.1)
    plain = merged(model.state_dict())
    assert set(plain) == names
    again = ViT(model.config)
    again.load_state_dict(plain)
    torch.testing.assert_close(again.features(images), model.features(images))


# Runs.


def test_a_run_says_what_every_stage_reached(adapted):
    out, said = adapted
    start = json.loads((out / "weights.json").read_text())
    assert list(start["stages"]) == ["teacher", "converted", "calibrated", "matched"]
    assert list(start["layers"]) == ["converted", "calibrated", "matched"]
    converted, calibrated, _ = (sum(start["layers"][name]) for name in start["layers"])
    assert calibrated < converted
    assert open_run(out).record.notes["weights"] == start
    assert "calibrated: " in said
    assert "matching step 3 of 3: mean layer error " in said


def test_teacher_of_a_run_is_the_run_that_was_named(teacher, adapted):
    start = json.loads((adapted[0] / "weights.json").read_text())
    validations = [x for x in open_run(teacher).metrics if x["kind"] == "validation"]
    best = next(x for x in validations if x["step"] == open_run(teacher).best_step)
    assert start["stages"]["teacher"]["top1"] == best["top1"]


def test_the_result_is_a_plain_model(adapted):
    model = open_run(adapted[0]).load_model()
    assert model.config.attention == AttentionSpec(**SPEC)
    assert set(final(adapted[0]).model) == set(model.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "step"), [(("adapt.rank=2",), 9), (("accumulate=2", "loss=sigmoid"), 3)]
)
def test_other_stopped_runs_go_on_bit_for_bit(teacher, tmp_path, monkeypatch, changes, step):
    train_quietly(adapting(teacher, *changes), tmp_path / "whole")
    stop_and_go_on(adapting(teacher, *changes), tmp_path / "whole", step, monkeypatch)


def test_a_stopped_run_goes_on_bit_for_bit(teacher, adapted, tmp_path, monkeypatch):
    shutil.copytree(adapted[0], tmp_path / "whole")
    stop_and_go_on(adapting(teacher), tmp_path / "whole", 3, monkeypatch)  # while annealed


def stop_and_go_on(config, whole, step, monkeypatch):
    stopped = whole.with_name("stopped")
    with monkeypatch.context() as context:
        interrupt_at(step, context)
        with pytest.raises(Preempted):
            train_quietly(config, stopped)
    _, said = train_quietly(config, stopped)
    assert f"going on from step {step}" in said
    assert_same_run(whole, stopped)
    assert open_run(stopped).load_model().config.num_classes == 10


def test_a_run_without_matching_and_annealing(teacher, tmp_path):
    config = adapting(teacher, "adapt.match_steps=0", "adapt.anneal_share=0", "steps=2")
    train_quietly(config, tmp_path / "run")
    start = json.loads((tmp_path / "run" / "weights.json").read_text())
    assert "matched" not in start["stages"]


def test_another_teacher_is_refused_when_a_run_goes_on(teacher, tmp_path, monkeypatch):
    mine = tmp_path / "teacher"
    shutil.copytree(teacher, mine)
    config = adapting(mine)
    with monkeypatch.context() as context:
        interrupt_at(3, context)
        with pytest.raises(Preempted):
            train_quietly(config, tmp_path / "run")
    shutil.rmtree(mine)
    changes = ("model.attention=softmax", "model.patch_size=2", "steps=24", "seed=7")
    train_quietly(tiny_config(*changes), mine)
    with pytest.raises(InputError, match="was begun with other data: teacher was"):
        train_quietly(config, tmp_path / "run")


def test_a_safetensors_file_may_be_the_teacher(teacher, tmp_path):
    file = tmp_path / "teacher.safetensors"
    safetensors.torch.save_file(open_run(teacher).load_model().state_dict(), file)
    task = AdaptTask(adapting(teacher, f"weights={file}"), Ranks())
    expected = open_run(teacher).load_model()(draw_images())
    torch.testing.assert_close(task.teacher(draw_images()), expected)


REFUSED = {
    "no teacher": (("weights=null",), "task 'adapt' needs a teacher"),
    "no run": (("weights=/nowhere",), "/nowhere cannot be read"),
    "softmax": (("model.attention=softmax",), "is softmax, as the teacher's"),
    "sizes": (("model.width=32",), "does not fit"),
    "share": (("adapt.anneal_share=2",), "anneal_share=2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_adapted_is_refused_before_a_folder_is_made(teacher, tmp_path, case):
    changes, said = REFUSED[case]
    with pytest.raises(InputError, match=said):
        train_quietly(adapting(teacher, *changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_teacher_without_softmax_is_refused(adapted, teacher):
    with pytest.raises(InputError, match="computes relu4 already, not softmax"):
        AdaptTask(adapting(teacher, f"weights={adapted[0]}"), Ranks())


def test_other_classes_than_the_teachers_are_refused(teacher, tmp_path):
    mine = tmp_path / "teacher"
    shutil.copytree(teacher, mine)
    data = json.loads((mine / "data.json").read_text())
    data["classes"][3] = "cat"
    (mine / "data.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"class 3 was 'cat', is '3'.*teacher's own classes"):
        AdaptTask(adapting(mine), Ranks())
