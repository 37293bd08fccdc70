"""A wrong call is refused before anything happens, in one line that carries the numbers."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from implementations import HAS_TRITON, IMPLEMENTATIONS, IN_PYTHON, device_of
from torch import nn
from torch._subclasses import FakeTensorMode

from flashpoint import (
    Activation,
    HeadNorm,
    InputError,
    UnsupportedError,
    attention,
    attention_qkvpacked,
    attention_varlen,
)
from flashpoint.ops import implementations

rand, full = torch.rand, torch.full
nan, inf = math.nan, math.inf
ints = partial(torch.tensor, dtype=torch.int64)


def batch(**changes):
    """A good call of ``attention``, with changes: B=2, Hq=4, Hkv=2, Lq=5, Lk=6, D=8, Dv=7."""
    good = {"q": rand(2, 4, 5, 8), "k": rand(2, 2, 6, 8), "v": rand(2, 2, 6, 7)}
    return attention, good | changes


def packed(**changes):
    """A good call of ``attention_varlen``, with changes: two sequences of 2 and 3 tokens."""
    tokens = {"q": rand(5, 4, 8), "k": rand(5, 2, 8), "v": rand(5, 2, 7)}
    starts = {"cu_seqlens_q": ints([0, 2, 5]), "cu_seqlens_k": ints([0, 2, 5])}
    return attention_varlen, tokens | starts | {"max_seqlen_q": 3, "max_seqlen_k": 3} | changes


def joined(**changes):
    """A good call of ``attention_qkvpacked``, with changes: B=2, L=5, H=4, D=8."""
    return attention_qkvpacked, {"qkv": rand(2, 5, 3, 4, 8)} | changes


def nested():
    """Two samples of other lengths, as PyTorch nests them."""
    samples = [rand(5, 4, 8), rand(6, 4, 8)]
    return torch.nested.nested_tensor(samples, layout=torch.jagged).transpose(1, 2)


GOOD = {"batch": batch(), "packed": packed(), "joined": joined()}
every_good = pytest.mark.parametrize("good", GOOD.values(), ids=GOOD)

QKV = {
    "q has rank 3": (batch(q=rand(4, 5, 8)), "q has 3 dim", "[4, 5, 8]", "4: [B, Hq, Lq, D]"),
    "q has rank 0": (batch(q=rand(())), "q has 0 dimensions", "[]"),
    "k has rank 5": (batch(k=rand(1, 2, 2, 6, 8)), "k has 5", "[1, 2, 2, 6, 8]", "Hkv, Lk, D]"),
    "v has rank 2": (batch(v=rand(6, 7)), "v has 2 dimensions", "[6, 7]", "[B, Hkv, Lk, Dv]"),
    "packed q has rank 4": (packed(q=rand(1, 5, 4, 8)), "q has 4", "3: [Tq, Hq, D]"),
    "packed v has rank 4": (packed(v=rand(1, 5, 2, 7)), "v has 4", "3: [Tk, Hkv, Dv]"),
    "k has another batch": (batch(k=rand(3, 2, 6, 8)), "k has shape [3, 2, 6, 8]", "B=2", "D=8"),
    "v has another batch": (batch(v=rand(1, 2, 6, 7)), "v has shape [1, 2, 6, 7]", "B=2"),
    "k has another head dim": (batch(k=rand(2, 2, 6, 9)), "k has shape [2, 2, 6, 9]", "D=8"),
    "v has other keys": (batch(v=rand(2, 2, 5, 7)), "v has shape [2, 2, 5, 7]", "Lk=6"),
    "v has other heads": (batch(v=rand(2, 4, 6, 7)), "v has shape [2, 4, 6, 7]", "Hkv=2"),
    "packed v has other keys": (packed(v=rand(4, 2, 7)), "v has shape [4, 2, 7]", "Tk=5"),
    "packed k has another head dim": (packed(k=rand(5, 2, 9)), "k has shape [5, 2, 9]", "D=8"),
    "heads do not divide": (batch(q=rand(2, 3, 5, 8)), "q has 3 heads", "multiple of the 2 heads"),
    "packed heads do not divide": (packed(q=rand(5, 3, 8)), "3 heads", "2 heads"),
    "fewer q heads": (batch(q=rand(2, 1, 5, 8)), "q has 1 heads", "2 heads"),
    "no key heads": (batch(k=rand(2, 0, 6, 8), v=rand(2, 0, 6, 7)), "q has 4 heads", "0 heads"),
    "no head dim": (batch(q=rand(2, 4, 5, 0), k=rand(2, 2, 6, 0)), "head dim 0", "at least 1"),
    "mixed dtypes": (batch(k=rand(2, 2, 6, 8).half()), "float32, float16 and float32"),
    "v alone in fp64": (batch(v=rand(2, 2, 6, 7).double()), "float32, float32 and float64"),
    "mixed packed dtypes": (packed(q=rand(5, 4, 8).bfloat16()), "bfloat16, float32 and float32"),
    "q on another device": (batch(q=rand(2, 4, 5, 8, device="meta")), "one device", "meta"),
    "v on another device": (batch(v=rand(2, 2, 6, 7, device="meta")), "one device", "meta"),
    "q is a list": (batch(q=[[1.0]]), "must be tensors", "list, Tensor, Tensor"),
    "k is None": (batch(k=None), "must be tensors", "Tensor, NoneType, Tensor"),
    "v is a number": (batch(v=1.0), "must be tensors", "Tensor, Tensor, float"),
    "k is sparse": (batch(k=rand(2, 2, 6, 8).to_sparse()), "k is sparse_coo", "k.to_dense()"),
    "v is nested": (batch(v=nested()), "v is nested", "attention_varlen"),
    "all are jagged": (
        batch(q=nested(), k=nested(), v=nested()),
        "q is nested",
        "key_lengths",
    ),
    "packed q is a list": (packed(q=[[1.0]]), "must be tensors", "list, Tensor, Tensor"),
}
for dtype in (torch.int64, torch.bool, torch.complex64, torch.uint8):
    call = batch(**{name: t.to(dtype) for name, t in batch()[1].items()})
    name = str(dtype).removeprefix("torch.")
    QKV[f"all {name}"] = (call, "float32, bfloat16, float16 or float64", f"Got {name}")

SCORED = {
    "mask too long": (batch(mask=rand(2, 4, 5, 7) > 0), "mask has shape [2, 4, 5, 7]", "Lk=6"),
    "mask of key heads": (batch(mask=rand(2, 2, 5, 6) > 0), "mask has", "[2, 2, 5, 6]", "Hq=4"),
    "mask of rank 5": (batch(mask=rand(1, 2, 4, 5, 6) > 0), "[1, 2, 4, 5, 6]", "[B=2, Hq=4, Lq=5"),
    "mask transposed": (batch(mask=rand(6, 5) > 0), "mask has shape [6, 5]", "Lq=5, Lk=6"),
    "mask of integers": (batch(mask=ints([1] * 6)), "mask must be bool or floating", "int64"),
    "mask complex": (batch(mask=rand(6) * 1j), "mask must be bool or floating", "complex64"),
    "mask elsewhere": (batch(mask=rand(6, device="meta")), "mask is on meta", "q on"),
    "mask is a list": (batch(mask=[True] * 6), "mask must be", "True"),
    "mask is a bool": (batch(mask=True), "mask must be", "True"),
    "packed mask": (packed(mask=rand(3, 4, 3, 3)), "[3, 4, 3, 3]", "[B=2, Hq=4, Lq=3, Lk=3]"),
    "bias too long": (batch(bias=rand(7)), "bias has shape [7]", "Lk=6"),
    "bias of another batch": (batch(bias=rand(3, 1, 1, 1)), "bias has shape [3, 1, 1, 1]", "B=2"),
    "bias of booleans": (batch(bias=rand(6) > 0), "bias must be floating", "bool"),
    "bias of integers": (batch(bias=ints([1] * 6)), "bias must be floating", "int64"),
    "bias elsewhere": (batch(bias=rand(6, device="meta")), "bias is on meta", "q on"),
    "packed bias": (packed(bias=rand(2, 4, 5, 5)), "bias has shape [2, 4, 5, 5]", "Lq=3, Lk=3"),
    "bias is a list": (batch(bias=[1.0]), "bias must be a number", "[1.0]"),
    "bias is a bool": (batch(bias=True), "bias must be a number", "True"),
    "bias is minus infinity": (batch(bias=-inf), "bias must be finite", "-inf", "mask"),
}

OPTIONS = {
    "misspelt activation": (
        batch(activation="rellu"),
        "'rellu' is unknown",
        "Did you mean 'relu'",
    ),
    "activation is a layer's word": (
        batch(activation="relu4/sum"),
        "'relu4/sum' is a word for layers and models",
        "Pass activation='relu4', normalize='sum'",
    ),
    "activation is a word with a shift": (
        batch(activation="relu4+2/sum"),
        "Pass activation='relu4', bias=2, normalize='sum'.",
    ),
    "wrong case": (batch(activation="GeLU"), "'GeLU' is unknown", "gelu"),
    "far-off activation": (batch(activation="xyz"), "'xyz'", "Known: relu, relu2", "Activation"),
    "activation is a function": (batch(activation=F.relu), "relu", "flashpoint.Activation"),
    "activation is softmax": (packed(activation="softmax"), "'softmax' is unknown"),
    "activation is None": (batch(activation=None), "activation=None is unknown"),
    "activation is a module": (batch(activation=nn.Sequential(nn.ReLU())), "is unknown"),
    "activation is long": (batch(activation="relu " * 99), "is unknown", "Known: relu"),
    "window is a number": (batch(window=3), "window must be (left, right)", "3"),
    "window of one": (batch(window=(3,)), "window must be (left, right)", "(3,)"),
    "window of three": (batch(window=(1, 2, 3)), "window must be (left, right)", "(1, 2, 3)"),
    "window of floats": (batch(window=(1.0, 2)), "window must be (left, right)", "(1.0, 2)"),
    "window of booleans": (batch(window=(True, 2)), "window must be (left, right)", "True"),
    "window to the left of -1": (batch(window=(-1, 2)), "-1 to the left", ">= 0"),
    "window to the right of -4": (packed(window=(None, -4)), "-4 to the right", ">= 0"),
    "window is a tensor": (batch(window=torch.zeros(9, 9)), "window must be (left, right)"),
    "window is long": (batch(window=tuple(range(500))), "window must be (left, right)"),
    "causal is a word": (batch(causal="false"), "causal must be", "'false'"),
    "causal is a mask": (batch(causal=rand(5, 6) > 0), "causal must be", "[5, 6]"),
    "packed causal is a number": (packed(causal=2), "causal must be", "2"),
    "unknown length": (batch(length="seen"), "length='seen'", '"visible", "keys"'),
    "unknown long length": (batch(length="keys " * 99), "is unknown", '"visible", "keys"'),
    "length 0": (batch(length=0), "length must be positive", "0"),
    "length -2.5": (packed(length=-2.5), "length must be positive", "-2.5"),
    "alpha is huge": (batch(alpha=10**400), "alpha must be finite"),
    "alpha is an array": (batch(alpha=torch.ones(9, 9).numpy()), "alpha must be a number"),
}
for name in ("alpha", "scale", "length"):
    OPTIONS |= {
        f"{name} is nan": (batch(**{name: nan}), f"{name} must be finite", "nan"),
        f"{name} is infinite": (batch(**{name: inf}), f"{name} must be finite", "inf"),
        f"{name} is a bool": (batch(**{name: True}), f"{name} must be a number", "True"),
        f"{name} is a tensor": (batch(**{name: rand(3)}), f"{name} must be a number", "[3]"),
        f"packed {name} is a list": (packed(**{name: [1]}), f"{name} must be a number", "[1]"),
    }
OPTIONS["alpha is None"] = (batch(alpha=None), "alpha must be a number", "None")
OPTIONS["length is None"] = (batch(length=None), "length must be a number", "None")

LENGTHS = {
    "key_lengths of floats": (batch(key_lengths=rand(2)), "int32 or int64", "float32", "[2]"),
    "key_lengths of booleans": (batch(key_lengths=rand(2) > 0), "int32 or int64", "bool"),
    "key_lengths for three": (batch(key_lengths=ints([1, 2, 3])), "shape [2]", "shape [3]"),
    "key_lengths of rank 2": (batch(key_lengths=ints([[1, 2]])), "shape [2]", "shape [1, 2]"),
    "key_lengths is a list": (batch(key_lengths=[1, 2]), "must be an integer tensor", "[1, 2]"),
    "key_lengths elsewhere": (batch(key_lengths=full((2,), 1, device="meta")), "is on meta"),
    "max_seqlen_q is None": (packed(max_seqlen_q=None), "max_seqlen_q must be", "None"),
    "max_seqlen_k is a float": (packed(max_seqlen_k=3.5), "max_seqlen_k must be", "3.5"),
    "max_seqlen_q is negative": (packed(max_seqlen_q=-1), "max_seqlen_q", "-1"),
    "one sequence less": (packed(cu_seqlens_k=ints([0, 5])), "cu_seqlens_k", "[3]", "shape [2]"),
    "no entry": (packed(cu_seqlens_q=ints([])), "cu_seqlens_q", "[1]", "shape [0]"),
    "cu_seqlens_q of floats": (
        packed(cu_seqlens_q=rand(3)),
        "cu_seqlens_q must be int32 or int64",
    ),
    "cu_seqlens_k of int16": (packed(cu_seqlens_k=ints([0, 2, 5]).short()), "int64", "int16"),
    "cu_seqlens_q is a number": (packed(cu_seqlens_q=ints(5)), "cu_seqlens_q", "shape []"),
    "cu_seqlens_q is a list": (packed(cu_seqlens_q=list(range(999))), "must be an integer tensor"),
    "cu_seqlens_k elsewhere": (packed(cu_seqlens_k=full((3,), 1, device="meta")), "on meta"),
}
# seen by reading tensors, for which nobody waits on a GPU
VALUES = {
    "key_lengths negative": (batch(key_lengths=ints([3, -1])), "key_lengths[1] is -1", "6 keys"),
    "key_lengths too large": (batch(key_lengths=ints([7, 3])), "key_lengths[0] is 7", "6 keys"),
    "joined lengths too large": (joined(key_lengths=ints([6, 3])), "lengths[0] is 6", "5 keys"),
    "cu_seqlens_q not from 0": (packed(cu_seqlens_q=ints([1, 2, 5])), "from 1 to 5", "0 to 5"),
    "cu_seqlens_k not from 0": (packed(cu_seqlens_k=ints([-1, 2, 5])), "seqlens_k runs from -1"),
    "cu_seqlens_q falls": (packed(cu_seqlens_q=ints([0, 6, 5])), "cu_seqlens_q", "6"),
    "cu_seqlens_k falls": (
        packed(cu_seqlens_q=ints([0, 1, 2, 5]), cu_seqlens_k=ints([0, 3, 2, 5])),
        *("cu_seqlens_k falls from 3 to 2", "sequence 1"),
    ),
    "cu_seqlens_q too short": (packed(cu_seqlens_q=ints([0, 2, 4])), "0 to 4", "0 to 5", "of q"),
    "cu_seqlens_k too long": (packed(cu_seqlens_k=ints([0, 3, 6])), "0 to 6", "0 to 5", "of k"),
    "max_seqlen_q too small": (packed(max_seqlen_q=2), "max_seqlen_q is 2", "sequence 1", "3 tok"),
    "max_seqlen_k too small": (packed(max_seqlen_k=0), "max_seqlen_k is 0", "sequence 0", "2 tok"),
}
JOINED = {
    "qkv is a list": (joined(qkv=[1.0]), "qkv must be a tensor", "[1.0]"),
    "qkv is sparse": (
        joined(qkv=rand(2, 5, 3, 4, 8).to_sparse()),
        "qkv is sparse_coo",
        "to_dense",
    ),
    "qkv is nested": (joined(qkv=nested()), "qkv is nested", "cu_seqlens"),
    "qkv has rank 4": (joined(qkv=rand(2, 5, 3, 32)), "qkv has 4 dim", "5: [B, L, 3, H, D]"),
    "qkv has two parts": (joined(qkv=rand(2, 5, 2, 4, 8)), "[2, 5, 2, 4, 8]", "third axis"),
    "qkv with parts first": (joined(qkv=rand(3, 2, 5, 4, 8)), "[3, 2, 5, 4, 8]", "[B, L, 3, H"),
    "qkv of integers": (joined(qkv=rand(2, 5, 3, 4, 8).int()), "qkv must be float32", "int32"),
    "qkv without a head dim": (joined(qkv=rand(2, 5, 3, 4, 0)), "head dim 0", "at least 1"),
    "norm is a word": (joined(q_norm="layer"), "q_norm must be a flashpoint.HeadNorm", "'layer'"),
    "norm is a module": (joined(k_norm=nn.LayerNorm(8)), "k_norm must be a flashpoint.HeadNorm"),
    "gain of other dim": (
        joined(q_norm=HeadNorm("rms", rand(4))),
        "q_norm.gain has",
        "[4]",
        "D=8",
    ),
    "gain of rank 2": (joined(k_norm=HeadNorm("rms", rand(4, 8))), "k_norm.gain", "[4, 8]", "D=8"),
    "gain of integers": (
        joined(q_norm=HeadNorm("rms", ints([1] * 8))),
        "q_norm.gain must be",
        "int",
    ),
    "gain elsewhere": (
        joined(k_norm=HeadNorm("layer", rand(8, device="meta"))),
        "k_norm.gain is on meta, qkv on",
    ),
    "joined mask": (
        joined(mask=rand(5, 6) > 0),
        "mask has shape [5, 6]",
        "[B=2, H=4, L=5, L=5]",
    ),
    "joined bias elsewhere": (joined(bias=rand(5, device="meta")), "bias is on meta, qkv on"),
    "joined lengths": (joined(key_lengths=ints([1])), "key_lengths", "shape [2]", "shape [1]"),
    "joined lengths elsewhere": (
        joined(key_lengths=full((2,), 1, device="meta")),
        "key_lengths is on meta, qkv on",
    ),
}
ROWS = QKV | SCORED | OPTIONS | LENGTHS | JOINED


def on_device_of(impl, arguments):
    """Tensors beside the implementation; those that are elsewhere on purpose stay there."""

    def place(x):
        return x.to(device_of(impl)) if isinstance(x, torch.Tensor) and x.is_cpu else x

    return {name: place(x) for name, x in arguments.items()} | {"impl": impl}


def refusal(call, arguments, error=InputError):
    """The message of the error, which must be one readable line."""
    with pytest.raises(error) as caught:
        call(**arguments)
    message = str(caught.value)
    assert type(caught.value) is error
    assert "\n" not in message
    assert len(message) <= 250, message
    assert message.endswith((".", "?")), message
    return message


@every_good
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_unchanged_call_is_served(impl, good):
    call, arguments = good
    assert call(**on_device_of(impl, arguments)).isfinite().all()


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_wrong_call_is_refused_with_the_numbers(impl, row):
    (call, arguments), *pieces = row
    message = refusal(call, on_device_of(impl, arguments))
    for piece in pieces:
        assert piece in message


@pytest.mark.parametrize("row", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("impl", IN_PYTHON)
def test_wrong_value_is_refused_with_the_numbers(impl, row):
    (call, arguments), *pieces = row
    message = refusal(call, on_device_of(impl, arguments))
    for piece in pieces:
        assert piece in message


@pytest.mark.parametrize("row", (LENGTHS | VALUES).values(), ids=LENGTHS | VALUES)
@pytest.mark.parametrize("impl", IN_PYTHON)
def test_refusal_comes_before_any_work(impl, row):
    (call, arguments), *_ = row
    seen = []
    spy = Activation("spy", lambda scores: seen.append(scores) or scores)
    arguments = on_device_of(impl, arguments | {"activation": spy})
    tensors = [t for t in arguments.values() if isinstance(t, torch.Tensor) and not t.is_meta]
    copies = [t.clone() for t in tensors]
    refusal(call, arguments)
    assert not seen
    for t, copy in zip(tensors, copies, strict=True):
        assert t._version == 0
        assert torch.equal(t, copy)


@every_good
@pytest.mark.parametrize(
    ("impl", "pieces"),
    [
        ("refrence", ("impl='refrence' is unknown", "Did you mean 'reference'?")),
        ("CPU", ("impl='CPU' is unknown", "Known: auto, reference, cpu, triton")),
        ("x" * 999, ("is unknown", "Known: auto, reference, cpu, triton")),
        (None, ("impl=None is unknown",)),
        (["cpu"], ("impl=['cpu'] is unknown",)),
    ],
)
def test_unknown_implementation_is_refused_with_close_match(good, impl, pieces):
    function, arguments = good
    message = refusal(function, arguments | {"impl": impl})
    for piece in pieces:
        assert piece in message


NORMS = {
    "unknown kind": (("batch",), "kind='batch' is unknown", "Known: layer, rms"),
    "misspelt kind": (("layr",), "'layr'", "Did you mean 'layer'"),
    "gain is a list": (("rms", [1.0]), "gain must be a tensor or None", "[1.0]"),
    "eps is 0": (("rms", None, 0), "eps must be at least 1.2e-38", "Got 0"),
    "eps is 0 in fp32": (("rms", None, 1e-50), "eps must be at least 1.2e-38", "Got 1e-50"),
    "eps is a word": (("layer", None, "small"), "eps must be a number", "'small'"),
    "eps is nan": (("layer", None, nan), "eps must be finite", "nan"),
}


@pytest.mark.parametrize("row", NORMS.values(), ids=NORMS)
def test_wrong_norm_is_refused_where_it_is_made(row):
    arguments, *pieces = row
    message = refusal(HeadNorm, dict(zip(("kind", "gain", "eps"), arguments, strict=False)))
    for piece in pieces:
        assert piece in message


def test_cpu_is_refused_for_tensors_elsewhere():
    with FakeTensorMode():  # stands in for a GPU
        _, arguments = batch()
        elsewhere = {name: torch.empty_like(t, device="cuda") for name, t in arguments.items()}
        message = refusal(attention, elsewhere | {"impl": "cpu"}, UnsupportedError)
        assert "impl='cpu'" in message
        assert "q is on cuda:0" in message
        assert attention(**elsewhere).is_cuda


def test_packed_call_is_told_about_qkv(monkeypatch):
    monkeypatch.setattr(implementations, "HAS_TRITON", True)
    monkeypatch.setattr(implementations, "INTERPRETED", False)
    call, arguments = joined()
    message = refusal(call, arguments | {"impl": "triton"}, UnsupportedError)
    assert "needs CUDA tensors, qkv is on cpu." in message
    wide = {"qkv": rand(1, 5, 3, 2, 300, device="meta")}
    message = refusal(call, wide | {"impl": "triton"}, UnsupportedError)
    assert "serves head dims up to 256, not D=300. " in message
    with FakeTensorMode():  # stands in for a GPU
        elsewhere = {"qkv": torch.empty(2, 5, 3, 4, 8, device="cuda")}
        message = refusal(call, elsewhere | {"impl": "cpu"}, UnsupportedError)
        assert "needs tensors on the CPU, qkv is on cuda:0." in message


LOOKALIKES = {
    "window": [(1, 2), (1.0, 2), (True, 2), (1, 2.0)],
    "alpha": [1, True],
    "scale": [0, False],
    "length": [1, True],
    "causal": [True, 1, 1.0],
    "bias": [0.0, False],
}


@pytest.mark.parametrize(("name", "values"), LOOKALIKES.items(), ids=LOOKALIKES)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_value_equal_to_a_good_one_is_still_refused(impl, name, values):
    good, *wrong = values
    for value in wrong:
        attention(**on_device_of(impl, batch(**{name: good})[1]))
        refusal(attention, on_device_of(impl, batch(**{name: value})[1]))


@pytest.mark.parametrize("impl", ["auto", "cpu", "reference", *["triton"] * HAS_TRITON])
@every_good
def test_meta_tensors_give_shape_and_dtype(impl, good):
    call, arguments = good
    on_meta = {
        name: t.to("meta") if isinstance(t, torch.Tensor) else t for name, t in arguments.items()
    }
    o = call(**on_meta, impl=impl)
    assert o.is_meta
    assert o.shape == call(**arguments).shape
    assert o.dtype == torch.float32
    assert o.is_contiguous()
