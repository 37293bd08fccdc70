"""Wrong words about sums are refused in one line that says what is wrong and what to do."""

import copy
import math
import pickle

import pytest
import torch
from implementations import IMPLEMENTATIONS, device_of

from flashpoint import (
    Activation,
    InputError,
    attention,
    attention_qkvpacked,
    attention_varlen,
    register_activation,
)

ends = torch.tensor([0, 2, 5])


def dense(**options):
    q, k, v = (torch.rand(1, 2, 5, 4) for _ in range(3))
    return attention(q, k, v, **options)


def varlen(**options):
    q, k, v = (torch.rand(5, 2, 4) for _ in range(3))
    return attention_varlen(q, k, v, ends, ends, 3, 3, **options)


def packed(**options):
    return attention_qkvpacked(torch.rand(1, 5, 3, 2, 4), **options)


OWN = Activation("shifted", lambda s: s - 1)
WRONG = {
    "unknown word": ({"normalize": "sums"}, "normalize", "'sums'", "sum", "length"),
    "softmax": ({"normalize": "softmax"}, "normalize", "'softmax'", "sum"),
    "word is None": ({"normalize": None}, "normalize", "None"),
    "word is a flag": ({"normalize": True}, "normalize", "True"),
    "gelu": ({"normalize": "sum", "activation": "gelu"}, "'gelu'", "negative", "is_nonnegative"),
    "silu": ({"normalize": "sum", "activation": "silu"}, "'silu'", "negative"),
    "identity": ({"normalize": "sum", "activation": "identity"}, "'identity'", "negative"),
    "own": ({"normalize": "sum", "activation": OWN}, "'shifted'", "is_nonnegative=True"),
    "alpha": ({"normalize": "sum", "alpha": 0.5}, "alpha", "0.5", "normalize='length'"),
    "alpha of zero": ({"normalize": "sum", "alpha": 0}, "alpha", "normalize='length'"),
    "floor below zero": ({"normalize": "sum", "floor": -1e-3}, "floor", "0", "-0.001"),
    "floor is NaN": ({"normalize": "sum", "floor": math.nan}, "floor", "nan"),
    "floor is infinite": ({"normalize": "sum", "floor": math.inf}, "floor", "inf"),
    "floor is a tensor": ({"normalize": "sum", "floor": torch.tensor(0.1)}, "floor", "number"),
    "floor is None": ({"normalize": "sum", "floor": None}, "floor", "None"),
    "floor is a flag": ({"normalize": "sum", "floor": True}, "floor", "True"),
    "floor beyond fp32": ({"normalize": "sum", "floor": 1e39}, "floor", "1e+39", "float32"),
    "sums by number": ({"return_sums": 1}, "return_sums", "True, False", "'logs'", "1"),
    "floor of a length": ({"floor": 0.7}, "floor", "0.7", "normalize='sum'"),
    "logs of gelu": ({"return_sums": "logs", "activation": "gelu"}, "logs", "'gelu'", "negative"),
    "negative mask": ({"normalize": "sum", "mask": torch.tensor([-0.5])}, "mask", "-0.5", "sum"),
    "mask of logs": ({"return_sums": "logs", "mask": torch.tensor([-1.0])}, "mask", "-1", "logs"),
    "sums by word": ({"return_sums": "yes"}, "return_sums", "'yes'"),
    "sums by None": ({"return_sums": None}, "return_sums", "None"),
}


@pytest.mark.parametrize("call", [dense, varlen, packed])
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_words_are_refused_in_one_line(call, wrong):
    options, *words = wrong
    with pytest.raises(InputError) as caught:
        call(**options)
    line = str(caught.value)
    assert "\n" not in line
    assert all(word in line for word in words), line


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_no_implementation_takes_negative_weights(impl):
    q = torch.rand(1, 2, 5, 4, device=device_of(impl))
    with pytest.raises(InputError, match="'gelu' may be negative"):
        attention(q, q, q, activation="gelu", normalize="sum", impl=impl)


CLAIMS = {
    "identity": (lambda s: s, "h(-3) is -3"),
    "by a little": (torch.nn.Hardtanh(-0.25, 1.0), "is -0.25"),
    "gelu": (torch.nn.functional.gelu, "h(-3)"),
}


@pytest.mark.parametrize(("function", "words"), CLAIMS.values(), ids=CLAIMS)
def test_wrong_claim_of_nonnegative_weights_is_refused(function, words):
    with pytest.raises(InputError) as caught:
        Activation("claimed", function, is_nonnegative=True)
    line = str(caught.value)
    assert "\n" not in line
    assert "'claimed'" in line
    assert "nonnegative" in line
    assert words in line


@pytest.mark.parametrize("claim", [1, None, "yes", torch.tensor(True)], ids=str)
def test_claim_must_be_a_flag(claim):
    with pytest.raises(InputError, match="is_nonnegative must be True or False"):
        Activation("claimed", torch.relu, is_nonnegative=claim)


def test_claims_of_one_name_must_agree():
    def squared(s):
        return s * s

    register_activation(Activation("squared_once", squared, is_nonnegative=True))
    with pytest.raises(InputError, match="is_nonnegative=True, not False"):
        register_activation(Activation("squared_once", squared))


def test_copies_keep_the_claim():
    mine = Activation("relu_again", torch.relu, is_nonnegative=True)
    assert copy.copy(mine).is_nonnegative
    assert pickle.loads(pickle.dumps(mine)).is_nonnegative


def test_numbers_that_say_the_same_are_one_call():
    """A floor of 0 and of 0.0; an alpha of 1, which is the default, is no alpha."""
    torch.manual_seed(0)
    q = torch.rand(1, 1, 3, 4)
    expected = attention(q, q, q, normalize="sum", floor=0.0)
    for options in ({"floor": 0}, {"floor": 0.0, "alpha": 1}, {"floor": -0.0}):
        assert torch.equal(attention(q, q, q, normalize="sum", **options), expected)
    assert torch.equal(attention(q, q, q, floor=1e-3), attention(q, q, q))
