"""AttentionSpec: data in, data out, and one line for what is wrong."""

import dataclasses
import json

import pytest

from flashpoint.errors import InputError
from flashpoint.layers.spec import AttentionSpec
from flashpoint.ops.spec import BUILTIN


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
    ],
)
def test_spec_survives_json(spec):
    data = spec.to_dict()
    assert list(data) == [field.name for field in dataclasses.fields(AttentionSpec)]
    assert AttentionSpec.parse(json.loads(json.dumps(data))) == spec
    assert hash(AttentionSpec.parse(data)) == hash(spec)


def test_numbers_become_floats():
    spec = AttentionSpec(alpha=1, gain=2, bias=-3, length=49)
    assert [type(x) for x in (spec.alpha, spec.gain, spec.bias, spec.length)] == [float] * 4


def test_learns_tells_parameters_from_numbers():
    spec = AttentionSpec(alpha="learned", gain="learned_per_head", bias="-log_length")
    assert [spec.learns(name) for name in ("alpha", "gain", "bias")] == [True, True, False]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"activation": "rellu"}, "activation='rellu' is unknown. Did you mean 'relu'"),
        ({"activation": None}, "activation=None is unknown"),
        ({"alpha": "lerned"}, "alpha='lerned' is unknown. Did you mean 'learned'"),
        ({"bias": "log_length"}, "Did you mean '-log_length'"),
        ({"gain": "-log_length"}, "gain='-log_length' is unknown"),
        ({"alpha": float("nan")}, "alpha must be finite"),
        ({"gain": True}, "gain must be a number"),
        ({"length": 0}, "length must be positive"),
        ({"length": "visable"}, "length='visable' is unknown"),
        ({"alpha_start": 0.5}, "Set alpha to 'learned'"),
        ({"bias": "-log_length", "bias_start": 1}, "bias='-log_length'. Set bias to 'learned'"),
        ({"gain": "learned", "gain_start": "big"}, "gain_start must be a number"),
        ({"activation": "softmax", "alpha": 0}, "softmax attention has no alpha"),
        ({"activation": "softmax", "gain": 2, "length": 9}, "has no length, gain"),
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
