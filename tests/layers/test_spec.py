"""AttentionSpec: data in, data out, and one line for what is wrong."""

import dataclasses
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashpoint import Activation, register_activation
from flashpoint.errors import InputError
from flashpoint.layers.spec import AttentionSpec
from flashpoint.ops import activation as activations
from flashpoint.ops.activation import BUILTIN


@pytest.mark.parametrize("activation", [*BUILTIN, "softmax"])
def test_every_activation_is_a_spec_by_name(activation):
    assert AttentionSpec.parse(activation) == AttentionSpec(activation=activation)


@pytest.mark.parametrize(
    "spec",
    [
        AttentionSpec(),
        AttentionSpec(activation="softmax"),
        AttentionSpec(activation="sigmoid", alpha=0, bias="-log_length", length="keys"),
        AttentionSpec(alpha="learned", alpha_start=0.5, gain="learned_per_head", gain_start=2),
        AttentionSpec(bias="learned", bias_start=-1, length=196),
        AttentionSpec(activation="relu4", normalize="sum", floor=0, gain="learned"),
        AttentionSpec(activation="silu", length="keys", scale=1),
    ],
)
def test_spec_survives_json(spec):
    data = spec.to_dict()
    assert list(data) == [field.name for field in dataclasses.fields(AttentionSpec)]
    assert AttentionSpec.parse(json.loads(json.dumps(data))) == spec
    assert hash(AttentionSpec.parse(data)) == hash(spec)


@pytest.mark.parametrize("activation", [*BUILTIN, "softmax"])
@pytest.mark.parametrize("normalize", ["", "/length", "/sum"])
def test_word_has_activation_and_normalization(activation, normalize):
    may_be_negative = activation in ("gelu", "silu", "identity")
    if normalize == "/sum" and (may_be_negative or activation == "softmax"):
        reason = "softmax attention has no normalize" if not may_be_negative else "may be negative"
        with pytest.raises(InputError, match=reason):
            AttentionSpec.parse(activation + normalize)
        return
    spec = AttentionSpec.parse(activation + normalize)
    assert spec.activation == activation
    assert spec.normalize == (normalize[1:] or "length")
    assert spec.word == activation + normalize.replace("/length", "")
    assert AttentionSpec.parse(spec.word) == spec


@given(shift=st.floats(1e-30, 1e30) | st.integers(1, 10**6).map(float))
@pytest.mark.parametrize("start", ["relu4", "relu", "sigmoid"])
@pytest.mark.parametrize("end", ["", "/sum"])
def test_word_has_the_number_that_is_added_to_scores(start, end, shift):
    spec = AttentionSpec.parse(f"{start}+{shift!r}{end}")
    assert (spec.activation, spec.bias, spec.by_sum) == (start, shift, bool(end))
    assert AttentionSpec.parse(spec.word) == spec
    assert AttentionSpec(activation=start, bias=-shift).word == start


@pytest.mark.parametrize("shift", ["", "four", "4+4", "-4", "inf", " 4", "1_0"])
def test_wrong_shift_is_one_line(shift):
    word = f"relu4+{shift}/sum"
    with pytest.raises(InputError, match=r"behind '\+', which is no positive number"):
        AttentionSpec.parse(word)


def test_exp_by_its_sum_has_no_floor_whatever_is_added():
    assert [AttentionSpec.parse(word).floor for word in ("exp/sum", "exp+1/sum")] == [0.0, 0.0]


def test_fields_written_before_sums_are_read():
    """Configs and checkpoints of earlier versions have no normalize, floor or scale."""
    before = {"activation": "relu", "alpha": 0.5, "alpha_start": 1.0, "length": "visible"}
    before |= {"gain": "learned", "gain_start": 1.4, "bias": 0.0, "bias_start": 0.0}
    expected = AttentionSpec(alpha=0.5, gain="learned", gain_start=1.4)
    assert AttentionSpec.parse(before) == expected
    assert expected.normalize == "length"


def test_own_activation_may_be_summed_if_it_says_so(monkeypatch):
    monkeypatch.setattr(activations, "NAMED", dict(activations.NAMED))
    register_activation(Activation("square", torch.square, is_nonnegative=True))
    register_activation(Activation("tanh", torch.tanh))
    assert AttentionSpec.parse("square/sum").word == "square/sum"
    with pytest.raises(InputError, match="'tanh' may be negative"):
        AttentionSpec.parse("tanh/sum")


def test_numbers_become_floats():
    spec = AttentionSpec(alpha=1, gain=2, scale=4, bias=-3, length=49)
    numbers = (spec.alpha, spec.gain, spec.scale, spec.bias, spec.length)
    assert [type(x) for x in numbers] == [float] * 5


def test_learns_tells_parameters_from_numbers():
    spec = AttentionSpec(alpha="learned", gain="learned_per_head", bias="-log_length")
    assert [spec.learns(name) for name in ("alpha", "gain", "bias")] == [True, True, False]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"activation": "rellu"}, "activation='rellu' is unknown. Did you mean 'relu'"),
        ({"activation": None}, "activation=None is unknown"),
        ({"activation": "hstu"}, "AttentionSpec.named('hstu').for_model() to create_model"),
        ({"alpha": "lerned"}, "alpha='lerned' is unknown. Did you mean 'learned'"),
        ({"bias": "log_length"}, "Did you mean '-log_length'"),
        ({"gain": "-log_length"}, "gain='-log_length' is unknown"),
        ({"alpha": float("nan")}, "alpha must be finite"),
        ({"gain": True}, "gain must be a number"),
        ({"length": 0}, "length must be positive"),
        ({"scale": "learned"}, "scale must be a number"),
        ({"scale": float("inf")}, "scale must be finite"),
        ({"activation": "softmax", "scale": 1}, "softmax attention has no scale"),
        ({"length": "visable"}, "length='visable' is unknown"),
        ({"alpha_start": 0.5}, "Set alpha to 'learned'"),
        ({"bias": "-log_length", "bias_start": 1}, "bias='-log_length'. Set bias to 'learned'"),
        ({"gain": "learned", "gain_start": "big"}, "gain_start must be a number"),
        ({"activation": "softmax", "alpha": 0}, "softmax attention has no alpha"),
        ({"activation": "softmax", "gain": 2, "length": 9}, "has no length, gain"),
        ({"normalize": "sums"}, "normalize='sums' is unknown. Did you mean 'sum'"),
        ({"activation": "relu4/sum"}, "activation='relu4/sum' is unknown. Did you mean 'relu4'"),
        ({"normalize": "sum", "alpha": 0.5}, "alpha=0.5 is the length's exponent"),
        ({"normalize": "sum", "alpha": "learned"}, "alpha='learned' is the length's exponent"),
        ({"normalize": "sum", "activation": "gelu"}, "'gelu' may be negative"),
        ({"normalize": "sum", "floor": -1}, "floor=-1.0 must be a number from 0"),
        ({"normalize": "sum", "floor": "low"}, "floor must be a number"),
        ({"floor": 0.1}, "floor=0.1 is for normalize='sum'"),
        ({"activation": "softmax", "normalize": "sum"}, "softmax attention has no normalize"),
        ({"activaton": "relu"}, "no field 'activaton'. Did you mean 'activation'"),
    ],
)
def test_wrong_field_is_one_line(fields, message):
    with pytest.raises(InputError) as error:
        AttentionSpec.parse(fields)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_parse_refuses_other_types():
    with pytest.raises(InputError, match=r"must be a name, a mapping or an AttentionSpec. Got 3"):
        AttentionSpec.parse(3)


def test_parse_says_what_to_pass_of_a_named_one():
    with pytest.raises(InputError, match=r"named\.spec for the mathematics alone"):
        AttentionSpec.parse(AttentionSpec.named("gau"))


@pytest.mark.parametrize("word", ["relu4/", "/sum", "relu4/sum/sum", "relu4 /sum"])
def test_wrong_word_is_one_line(word):
    with pytest.raises(InputError, match="is unknown"):
        AttentionSpec.parse(word)
