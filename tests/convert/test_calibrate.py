"""Calibration: three numbers a head, in least squares against softmax."""

import math
from itertools import cycle

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from convert.foreign import stir
from convert.test_replace_timm import images as timm_images
from convert.test_replace_timm import make as make_timm
from torch import nn

from flashpoint import AttentionSpec, InputError, replace_attention, restore_attention
from flashpoint.convert.calibrate import QUERIES, SAMPLES, calibrated_spec, part_of_call
from flashpoint.convert.number_search import search_numbers
from flashpoint.convert.substitute import Substitute

HEADS = 4
SPECS = (
    *("relu", "relu4/sum", "relu2", "sigmoid", "gelu", "exp/sum", "exp", "identity"),
    AttentionSpec(activation="sigmoid", alpha=0.0, bias="-log_length"),
    AttentionSpec(activation="relu", gain=3.0, bias=-0.5),
    AttentionSpec(activation="silu", scale=1.0),
    AttentionSpec(activation="relu", alpha="learned", gain="learned", gain_start=2.0),
)
KINDS = ("plain", "causal", "bool", "added", "grouped", "blind", "scaled", "cross")


def draw(kind, seed=0, queries=20, spread=2.0):
    """SDPA's arguments of one call."""
    torch.manual_seed(seed)
    keys = 13 if kind == "cross" else queries
    heads = 2 if kind == "grouped" else HEADS
    q = spread * torch.randn(3, HEADS, queries, 8)
    k, v = torch.randn(3, heads, keys, 8), torch.randn(3, heads, keys, 8)
    seen = torch.rand(3, 1, queries, keys) < 0.6
    seen[..., 0] = True
    options = {
        "causal": {"is_causal": True},
        "bool": {"attn_mask": seen},
        "added": {"attn_mask": torch.randn(HEADS, queries, keys)},
        "grouped": {"enable_gqa": True},
        "blind": {"attn_mask": seen & (torch.arange(queries) > 2)[:, None]},
        "scaled": {"scale": 0.1},
    }
    return (q, k, v), options.get(kind, {})


def softmax_call(kind, **options):
    tensors, given = draw(kind, **options)
    return part_of_call(F.scaled_dot_product_attention(*tensors, **given), *tensors, **given)


def substitute_for(spec, **options):
    spec = calibrated_spec(AttentionSpec.parse(spec))
    return Substitute(spec, HEADS, learns_scale=True, **options)


@torch.no_grad()
def error_of(substitute, calls):
    """The error as the definition says it, without the search's sums."""
    pairs = [(substitute(*call.tensors, **call.options), call.output) for call in calls]
    pairs = [(o, t.nan_to_num(0.0)) for o, t in pairs]
    size = sum(t.double().square().sum() for _, t in pairs)
    return float(sum((o.double() - t.double()).square().sum() for o, t in pairs) / size)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [*zip(SPECS, cycle(KINDS), strict=False), *(("relu4/sum", kind) for kind in KINDS)],
)
def test_a_fit_is_never_worse_and_says_its_error(spec, kind):
    calls = [softmax_call(kind, seed=seed) for seed in range(2)]
    before = error_of(substitute_for(spec), calls)
    substitute = substitute_for(spec)
    fit = search_numbers(substitute, calls, "it")
    assert fit.after <= fit.before
    assert fit.before == pytest.approx(before, rel=1e-4, abs=1e-9)
    assert fit.after == pytest.approx(error_of(substitute, calls), rel=1e-4, abs=1e-9)


def test_a_fit_is_the_same_again():
    found = []
    for _ in range(2):
        substitute = substitute_for("relu4/sum")
        search_numbers(substitute, [softmax_call("causal")], "it")
        found.append(substitute.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


SHARP = AttentionSpec(activation="sigmoid", scale=2.0)


@pytest.mark.parametrize("spec", ["relu", "relu2", "sigmoid", SHARP, "relu4/sum", "softplus"])
def test_known_numbers_are_found_again(spec):
    teacher = substitute_for(spec)
    with torch.no_grad():
        teacher.gain.copy_(torch.tensor([0.3, 1.0, 2.0, 5.0]))
        teacher.bias.copy_(torch.tensor([-1.0, 0.0, 0.4, -2.0]))
        teacher.scale.copy_(torch.tensor([1.0, 0.7, 1.5, 2.0]))
        tensors, _ = draw("plain")
        calls = [part_of_call(teacher(*tensors), *tensors)]
    student = substitute_for(spec)
    fit = search_numbers(student, calls, "it")
    assert fit.after < 1e-3 < fit.before
    threshold, known = (x.bias / x.scale for x in (student, teacher))
    if spec in ("relu", "relu2", "relu4/sum"):  # gain and scale together are one number there
        torch.testing.assert_close(threshold, known, rtol=0.02, atol=0.05)


def test_exp_over_its_sum_is_softmax_after_calibration():
    fit = search_numbers(substitute_for("exp/sum"), [softmax_call("bool")], "it")
    assert fit.after < 1e-9
    assert fit.after < fit.before


def test_gain_is_the_least_squares_one():
    calls = [softmax_call("plain", seed=seed) for seed in range(3)]
    substitute = substitute_for("relu")
    fit = search_numbers(substitute, calls, "it")
    for factor in (0.99, 1.01):
        with torch.no_grad():
            substitute.gain.mul_(factor)
        assert error_of(substitute, calls) > fit.after
        with torch.no_grad():
            substitute.gain.div_(factor)


def test_overflow_before_calibration_is_an_infinite_error():
    fit = search_numbers(substitute_for("exp"), [softmax_call("plain", spread=300.0)], "it")
    assert fit.before == math.inf
    assert math.isfinite(fit.after)


def test_heads_without_output_keep_their_numbers():
    (q, k, v), _ = draw("plain")
    v[:, 1] = 0.0
    substitute = substitute_for("relu")
    output = F.scaled_dot_product_attention(q, k, v)
    assert search_numbers(substitute, [part_of_call(output, q, k, v)], "it").after < 1
    assert substitute.gain[1] == 1.0
    assert substitute.bias[1] == 0.0


def test_nothing_finite_is_refused():
    (q, k, v), _ = draw("plain")
    call = part_of_call(torch.full_like(q, math.nan), q, k, v)
    with pytest.raises(InputError, match=r"blocks.0: softmax attention gives nothing finite"):
        search_numbers(substitute_for("relu"), [call], "blocks.0")


@pytest.mark.parametrize("kind", ["plain", "causal", "bool", "added"])
def test_a_part_of_a_long_call_is_what_the_whole_gives_there(kind):
    tensors, given = draw(kind, queries=QUERIES + 44)
    attend = Substitute("relu4/sum", HEADS)
    whole = attend(*tensors, **given)
    call = part_of_call(whole, *tensors, **given)
    assert call.tensors[0].shape[2] == QUERIES
    torch.testing.assert_close(attend(*call.tensors, **call.options), call.output)


def test_samples_are_spread_over_the_batch():
    q = torch.arange(20.0).view(20, 1, 1, 1).expand(20, 2, 3, 4)
    call = part_of_call(q, q, q, q, torch.ones(20, 1, 3, 3, dtype=torch.bool))
    assert len(call.output) == len(call.options["attn_mask"]) == SAMPLES
    assert call.output[:, 0, 0, 0].tolist() == [0, 2, 5, 7, 10, 12, 15, 17]


# Whole models.


def encoder(dtype=torch.float32):
    layer = nn.TransformerEncoderLayer(32, HEADS, 48, dropout=0.0, batch_first=True)
    return stir(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).to(dtype)


X = torch.randn(3, 12, 32, generator=torch.Generator().manual_seed(3))


def state_of(model):
    """All that must not change, exactly."""
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    facts = [(name, type(x), x.training, x.forward) for name, x in model.named_modules()]
    return weights, facts


def assert_untouched(model, before):
    weights, facts = state_of(model)
    assert facts == before[1]
    assert weights.keys() == before[0].keys()
    assert all(torch.equal(weights[name], before[0][name]) for name in weights)


def test_a_calibrated_model_is_nearer_to_its_own_output():
    def distance(**options):
        model = encoder()
        expected = model(X)
        report = replace_attention(model, "relu4/sum", **options)
        return (model(X) - expected).square().sum(), report

    (plain, _), (calibrated, report) = distance(), distance(calibrate=[X])
    assert calibrated < plain
    assert [entry.fit.after < entry.fit.before for entry in report.replaced] == [True, True]
    assert report.num_new_parameters == 2 * 3 * HEADS
    first = report.replaced[0].fit
    assert f"relu4/sum, error {first.before:.3g} -> {first.after:.3g}" in str(report)


def test_batches_are_calls():
    padding = torch.zeros(3, 12, dtype=torch.bool)
    padding[:, 9:] = True
    named = {"src": X, "src_key_padding_mask": padding}
    found = []
    for batch in (named, (X, None, padding)):
        model = encoder()
        replace_attention(model, "relu", calibrate=iter([batch]))
        found.append(model.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_calibrating_again_starts_from_softmax():
    once, twice = encoder(), encoder()
    replace_attention(twice, "relu", layers=[0], calibrate=[X])
    for model in (once, twice):
        replace_attention(model, "relu4/sum", calibrate=[X])
    assert all(torch.equal(once.state_dict()[x], y) for x, y in twice.state_dict().items())


def test_a_model_in_half_precision_has_numbers_in_its_own():
    model = encoder(torch.bfloat16)
    report = replace_attention(model, "sigmoid", calibrate=[X.bfloat16()])
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert all(entry.fit.after < entry.fit.before for entry in report.replaced)
    assert model(X.bfloat16()).isfinite().all()


def test_numbers_learn():
    model = encoder()
    replace_attention(model, "relu4/sum", calibrate=[X])
    model.train()(X).square().sum().backward()
    numbers = [p for name, p in model.named_parameters() if ".substitute." in name]
    assert len(numbers) == 6
    assert all(p.grad.abs().sum() > 0 for p in numbers)


def test_a_calibrated_model_is_saved_and_loaded(tmp_path):
    model = encoder()
    replace_attention(model, "relu4/sum", layers=[1], calibrate=[X])
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_file(model.state_dict(), file)
    weights = safetensors.torch.load_file(file)
    names = {"gain", "bias", "scale"}
    assert {f"layers.1.self_attn.substitute.{name}" for name in names} < weights.keys()
    again = stir(encoder(), seed=5)
    report = replace_attention(again, "relu4/sum", layers=[1], calibrate=weights)
    again.load_state_dict(weights)
    assert report.replaced[0].fit is None
    torch.testing.assert_close(again(X), model(X), rtol=0, atol=0)


def calls_nothing(model):
    def forward(src, **_):
        return src

    model.layers[1].forward = forward


REFUSED = {
    "no batch": ([], "calibrate has no batch"),
    "tensor": (X, r"calibrate must be batches, as \[images\], or a state dict. Got a tensor of"),
    "number": (3, "calibrate must be batches.*Got 3"),
    "one batch": ({"src": X}, r"lacks 'layers.0.self_attn.substitute.gain', expected \[4\]"),
    "softmax": ([X], "attention is softmax. Leave calibrate out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_changes_nothing(case):
    batches, said = REFUSED[case]
    model = encoder().train()
    before = state_of(model)
    with pytest.raises(InputError, match=said):
        replace_attention(model, "softmax" if case == "softmax" else "relu", calibrate=batches)
    assert_untouched(model, before)


def test_numbers_of_another_size_are_refused_before_any_is_taken():
    model = encoder()
    replace_attention(model, "relu", calibrate=[X])
    weights = model.state_dict()
    weights["layers.1.self_attn.substitute.bias"] = torch.zeros(2)
    restore_attention(model)
    before = state_of(model)
    with pytest.raises(InputError, match=r"a tensor of shape \[2\] as 'layers.1.+expected \[4\]"):
        replace_attention(model, "relu", calibrate=weights)
    assert_untouched(model, before)


def test_modules_that_no_batch_reaches_are_refused():
    model = encoder()
    calls_nothing(model)
    before = state_of(model)
    with pytest.raises(InputError, match=r"1 of 2 attention modules were not called.*layers.1"):
        replace_attention(model, "relu", calibrate=[X])
    assert_untouched(model, before)


def test_an_error_of_the_model_leaves_it_as_it_was():
    model = encoder().train()
    replace_attention(model, "relu2", layers=[0], calibrate=[X])
    before = state_of(model)
    with pytest.raises((RuntimeError, AssertionError)):
        replace_attention(model, "relu", calibrate=[X, X[..., :5]])
    assert_untouched(model, before)


@pytest.mark.parametrize("name", ["vit", "swin"])
def test_models_of_timm_are_calibrated(timm, name):
    model = make_timm(timm, name)
    report = replace_attention(model, "relu4/sum", calibrate=[timm_images()])
    assert all(entry.fit.after < entry.fit.before for entry in report.replaced)


def test_models_of_hugging_face_are_calibrated(transformers):
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = stir(transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)))
    seen = torch.ones(3, 17, dtype=torch.long)
    seen[1, :5] = 0  # padded on the left
    batch = {"input_ids": torch.arange(51).view(3, 17) % 50, "attention_mask": seen}
    expected = model(**batch).logits
    report = replace_attention(model, "relu4/sum", calibrate=[batch])
    assert all(entry.fit.after < 0.5 * entry.fit.before for entry in report.replaced)
    restore_attention(model)
    assert torch.equal(model(**batch).logits, expected)
