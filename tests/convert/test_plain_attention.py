"""Our operators written out in plain operations: the definition's results, in small graphs."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import flashpoint
from flashpoint.convert.plain_attention import decompositions
from flashpoint.ops.activation import BUILTIN, NAMED

B, HQ, HKV, LQ, LK, D, DV = 2, 4, 2, 5, 7, 8, 6
CALLS = {
    **{name: {"activation": name} for name in (*BUILTIN, "cube")},
    **{
        f"{name}-sum": {"activation": name, "normalize": "sum", "causal": True}
        for name in (*BUILTIN, "cube")
        if NAMED[name].is_nonnegative
    },
    "no-floor": {"activation": "relu", "normalize": "sum", "floor": 0, "mask": "bool"},
    "sum-of-keys": {"normalize": "sum", "length": "keys", "lengths": True, "floor": 0.1},
    "sum-of-a-number": {"normalize": "sum", "length": 5, "window": (1, None), "floor": 0.1},
    "keys": {"length": "keys", "mask": "bool", "alpha": 0.5},
    "a-number": {"length": 3.0, "alpha": 2.0, "scale": 0.3},
    "no-length": {"alpha": 0, "activation": "sigmoid", "bias": -1.5},
    "causal": {"causal": True, "activation": "gelu", "lengths": True},
    "window": {"window": (2, 1), "mask": "float", "activation": "softplus"},
    "left": {"window": (1, None), "mask": "rows", "bias": "tensor"},
    "rows-alone": {"mask": "rows"},
    "logs": {"return_sums": "logs", "causal": True},
    "sums": {"return_sums": True, "mask": "float"},
}


def options_of(call):
    """Words for tensors become tensors; row 0 of the bool mask sees nothing."""
    options = dict(call)
    masks = {
        "bool": torch.rand(B, 1, LQ, LK) > 0.4,
        "rows": torch.tensor([True, False, True, True, True]).view(1, 1, LQ, 1),
        "float": torch.rand(1, HQ, LQ, LK),
    }
    masks["bool"][:, :, 0] = False
    if "mask" in options:
        options["mask"] = masks[options["mask"]]
    if options.get("bias") == "tensor":
        options["bias"] = torch.randn(HQ, 1, LK)
    if options.pop("lengths", False):
        options["key_lengths"] = torch.tensor([LK, 3])
    return options


class WrittenOut(TorchDispatchMode):
    """Our operators are written out as soon as they are called."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return decompositions().get(func, func)(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", CALLS)
def test_results_are_the_definition_s(name):
    torch.manual_seed(0)
    options = options_of(CALLS[name])
    q, k, v = torch.randn(B, HQ, LQ, D), torch.randn(B, HKV, LK, D), torch.randn(B, HKV, LK, DV)
    if "key_lengths" in options:
        v[1, :, 3:] = torch.nan  # of keys that do not exist
    with WrittenOut():
        got = flashpoint.attention(q, k, v, **options)
    wanted = flashpoint.attention(q, k, v, **options, impl="reference")
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_packed_norms_and_dtypes_are_kept(dtype):
    torch.manual_seed(0)
    qkv = torch.randn(2, 6, 3, 2, 8, dtype=dtype)
    norm = flashpoint.HeadNorm("rms", torch.rand(8, dtype=dtype))

    def call(x, **options):
        norms = {"q_norm": norm, "k_norm": flashpoint.HeadNorm("layer")}
        return flashpoint.attention_qkvpacked(x, **norms, normalize="sum", **options)

    with WrittenOut():
        got = call(qkv)
    assert got.dtype == dtype
    torch.testing.assert_close(got, call(qkv, impl="reference"))


def test_varlen_is_the_definition_s():
    q = torch.randn(7, 2, 8)
    ends = torch.tensor([0, 3, 7])

    def call(x, **options):
        return flashpoint.attention_varlen(x, x, x, ends, ends, 4, 4, causal=True, **options)

    with WrittenOut():
        got = call(q)
    torch.testing.assert_close(got, call(q, impl="reference"))


class Plain(torch.nn.Module):
    def forward(self, x):
        return flashpoint.attention(x, x, x)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # inside torch.export
def test_a_plain_call_is_two_products_an_activation_and_factors():
    program = torch.export.export(Plain(), (torch.randn(2, 2, 5, 8),))
    program = program.run_decompositions(decompositions())
    calls = [node.target.__name__ for node in program.graph.nodes if node.op == "call_function"]
    kinds = {name.partition(".")[0] for name in calls}
    assert kinds == {"mul", "transpose", "matmul", "relu"}, calls
