"""The regularization of relu attention, beside a dense computation in fp64."""

import math
from functools import partial

import pytest
import torch
from implementations import IMPLEMENTATIONS, device_of, widest_dtype
from models.measured_rows import measure_rows
from torch.utils._python_dispatch import TorchDispatchMode

from flashpoint import attention
from flashpoint.errors import UnsupportedError
from flashpoint.layers.attention import Attention
from flashpoint.layers.spec import AttentionSpec
from flashpoint.models.penalty import FLOOR, RowSums, attend_and_measure, penalize, row_sums

implementations = pytest.mark.parametrize("impl", IMPLEMENTATIONS)

B, H, LQ, LK, D = 3, 4, 9, 9, 8
ROOT2 = math.sqrt(2)
SPECS = {
    "gamma learned": AttentionSpec(alpha=0.5, gain="learned", gain_start=ROOT2 / 0.8),
    "gamma per head": AttentionSpec(alpha=0.5, gain="learned_per_head", gain_start=ROOT2),
    "gamma a number": AttentionSpec(alpha=0.5, gain=ROOT2 / 1.3),
    "alpha learned": AttentionSpec(alpha="learned", alpha_start=0.7, gain="learned"),
    "no factor": AttentionSpec(alpha=0.0),
    "keys": AttentionSpec(alpha=0.5, length="keys", gain="learned"),
    "bias": AttentionSpec(alpha=0.5, bias="learned", bias_start=0.2),
}
SIGHTS = {
    "all": {},
    "causal": {"causal": True},
    "lengths": {"key_lengths": torch.tensor([9, 4, 1])},
    "blind": {"key_lengths": torch.tensor([9, 0, 5])},
    "queries": {"query_lengths": torch.tensor([2, 9, 0]), "causal": True},
    "both": {"key_lengths": torch.tensor([3, 9, 6]), "query_lengths": torch.tensor([9, 1, 4])},
}


def make_layer(spec, impl="cpu", dtype=torch.float64, **settings):
    torch.manual_seed(0)
    attend = partial(attention, impl=impl)
    layer = Attention(H * D, H, spec, attend=attend, **settings).to(device_of(impl), dtype)
    for name in ("gain", "alpha"):
        if spec.learns(name):
            getattr(layer, name).data += 0.1 * torch.rand_like(getattr(layer, name))
    return layer


def make_qk(lq=LQ, lk=LK, kv_heads=H, seed=1, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((B, H, lq, D), (B, kv_heads, lk, D))
    return [size * torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


def attention_penalty(layer, q, k, *, query_lengths=None, **options):
    """The penalty of one layer."""
    return penalize(layer, [measure_rows(layer, q, k, **options)], query_lengths)


def dense_penalty(layer, q, k, *, causal=False, key_lengths=None, query_lengths=None):
    """The definition, from the whole matrix of weights, row by row."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if layer.bias is not None:
        scores = scores + layer.bias.view(-1, 1, 1)
    j, i = torch.arange(k.shape[2]), torch.arange(q.shape[2])[:, None]
    seen = torch.ones(q.shape[0], 1, q.shape[2], k.shape[2], dtype=torch.bool)
    if causal:
        seen = seen & (j <= i + k.shape[2] - q.shape[2])
    if key_lengths is not None:
        seen = seen & (j < key_lengths.view(-1, 1, 1, 1))
    n = seen.sum(-1).double()
    valid = n > 0
    if query_lengths is not None:
        valid = valid & (i[:, 0] < query_lengths.view(-1, 1, 1))
    gain = layer.spec.gain if layer.gain is None else layer.gain.view(-1, 1)
    alpha = layer.spec.alpha if layer.alpha is None else layer.alpha.view(-1, 1)
    base = n.clamp(min=1) if layer.spec.length == "visible" else torch.full_like(n, k.shape[2])
    factor = gain * base**-alpha  # [B, #H, Lq]
    total, count = torch.zeros((), dtype=torch.float64), 0
    for b, h, row in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        if not valid[b, 0, row]:
            continue
        r = scores[b, h, row][seen[b, 0, row]].relu()
        z = (factor[b, h % factor.shape[1], row] * r.sum()).abs()
        log_z = z.log() if z > FLOOR else math.log(FLOOR) + z / FLOOR - 1
        total = total + log_z.abs()
        share = r[r > 0] / r.sum()
        entropy = -(share * share.log()).sum() if r.sum() >= FLOOR else r.sum() * 0
        total = total + (entropy - 0.7 * n[b, 0, row].log()).clamp(min=0)
        count += 1
    return total / count


def values_and_gradients(function, layer, q, k, **options):
    device, dtype = layer.proj.weight.device, layer.proj.weight.dtype
    q, k = (t.to(device, dtype).requires_grad_() for t in (q, k))
    options = {n: x.to(device) if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    penalty = function(layer, q, k, **options)
    learned = [p for p in (layer.gain, layer.alpha, layer.bias) if p is not None]
    grads = torch.autograd.grad(penalty, [q, k, *learned], allow_unused=True)
    return [penalty.detach(), *(torch.zeros(1) if grad is None else grad for grad in grads)]


def assert_same(got, expected, **tolerances):
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.cpu().double(), other.double(), **tolerances)


@pytest.mark.parametrize("options", SIGHTS.values(), ids=SIGHTS)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_penalty_and_gradients_are_those_of_the_dense_computation(spec, options):
    layer, (q, k) = make_layer(spec), make_qk()
    expected = values_and_gradients(dense_penalty, layer, q, k, **options)
    assert expected[0] > 0
    assert all(grad.any() for grad in expected[1:3])
    got = values_and_gradients(attention_penalty, layer, q, k, **options)
    assert_same(got, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("size", [0.03, 1.0, 30.0])
@implementations
def test_every_implementation_serves_the_penalty(impl, size):
    q, k = make_qk(lq=7, lk=20, kv_heads=2, size=size)
    spec, options = SPECS["gamma per head"], SIGHTS["lengths"]
    exact = make_layer(spec, num_kv_heads=2)
    expected = values_and_gradients(dense_penalty, exact, q, k, **options)
    layer = make_layer(spec, impl, widest_dtype(impl), num_kv_heads=2)
    layer.load_state_dict(exact.state_dict())
    got = values_and_gradients(attention_penalty, layer, q, k, **options)
    largest = max(grad.abs().max().item() for grad in expected)
    exactness = 1e-11 if widest_dtype(impl) == torch.float64 else 1e-5
    assert_same(got, expected, rtol=1e-4, atol=exactness * largest)


@implementations
def test_sum_of_one_weight_with_its_logarithm_is_their_formula(impl):
    scores = [-3.0, -1e-3, 0.0, 1e-38, 1e-6, 0.2, 1 / math.e, 1.0, 2.0, 1e4]
    expected = [s * math.log(s) if s > 0 else 0.0 for s in scores]
    slopes = [0.0 if s <= 0 else 1 + math.log(max(s, 2.0**-100)) for s in scores]
    device, dtype = device_of(impl), widest_dtype(impl)
    q = torch.tensor(scores, device=device, dtype=dtype).view(1, 1, -1, 1).requires_grad_()
    k = torch.ones_like(q[:, :, :1])
    _, _, logs = attention(q, k, k, return_sums="logs", impl=impl)
    (grads,) = torch.autograd.grad(logs.sum(), q)
    for got, wanted in ((logs, expected), (grads, slopes)):
        wanted = torch.tensor(wanted, dtype=torch.float64)
        torch.testing.assert_close(got.flatten().cpu().double(), wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_output_beside_sums_is_that_of_the_layer(spec):
    layer = make_layer(spec, gate="sigmoid")
    x = torch.randn(2, 7, H * D, dtype=torch.float64)
    lengths = torch.tensor([7, 4])
    y, _ = attend_and_measure(layer, x, causal=True, key_lengths=lengths)
    torch.testing.assert_close(y, layer(x, causal=True, key_lengths=lengths))


def test_sums_are_mass_and_entropy():
    layer, (q, k) = make_layer(SPECS["gamma learned"]), make_qk(lk=30)
    weights = layer.double().weights(q, k).double()
    sums = row_sums(layer, [measure_rows(layer, q, k)])
    torch.testing.assert_close(sums.mass[0, ..., 0], weights.sum(-1), rtol=1e-5, atol=1e-6)
    share = weights / weights.sum(-1, keepdim=True)
    entropy = -torch.special.xlogy(share, share).sum(-1)
    torch.testing.assert_close(sums.entropy()[0, ..., 0], entropy, rtol=1e-5, atol=1e-5)


def test_equal_weights_of_sum_one_cost_their_entropy_only():
    layer = make_layer(AttentionSpec(alpha=0.5))  # n keys of score c weigh sqrt(n) c together
    q, k = torch.ones(1, H, 1, D).double(), torch.ones(1, H, 16, D).double()
    k *= 0.25 / math.sqrt(D)
    penalty = attention_penalty(layer, q, k)
    torch.testing.assert_close(penalty.item(), 0.3 * math.log(16))


@pytest.mark.parametrize("gain", [ROOT2, -0.5, 0.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rows_without_mass_have_finite_values_and_gradients(dtype, gain):
    """Every score negative, all zero, one that is tiny; and a gain that learned to be anything."""
    layer = make_layer(SPECS["gamma learned"], dtype=dtype)
    layer.gain.data.fill_(gain)
    q = torch.zeros(1, H, 4, D, dtype=dtype)
    q[:, :, 0], q[:, :, 2], q[:, :, 3, 0] = -1, 1e-7, 1e4
    k = torch.ones(1, H, 5, D, dtype=dtype)
    q, k = q.requires_grad_(), k.requires_grad_()
    penalty = attention_penalty(layer, q, k)
    assert penalty.isfinite()
    penalty.backward()
    assert all(t.grad.isfinite().all() for t in (q, k, layer.gain))
    dead = attention_penalty(layer, q[:, :, :1], k)
    torch.testing.assert_close(dead.item(), 1 - math.log(FLOOR), rtol=1e-6, atol=0)


def test_little_mass_is_pulled_upwards():
    layer = make_layer(SPECS["gamma a number"])
    for size in (1e-4, 1e-2, 3e-2):  # under the floor and above it
        q = torch.full((1, H, 1, D), size, dtype=torch.float64, requires_grad=True)
        k = torch.full((1, H, 3, D), size, dtype=torch.float64)
        attention_penalty(layer, q, k).backward()
        assert (q.grad < 0).all()


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99, 1.01])
def test_entropy_counts_from_the_floor_on(share):
    counts, raw = torch.tensor([16.0]), torch.tensor([share * FLOOR])
    equal = raw * (raw / 16).clamp(min=1e-30).log()
    sums = RowSums(counts, raw, equal, mass=torch.ones(1))  # of mass 1, so that log costs nothing
    assert sums.entropy().item() == pytest.approx(math.log(16) if share > 1 else 0.0, rel=1e-5)
    assert sums.penalty().item() == pytest.approx(0.3 * math.log(16) if share > 1 else 0, rel=1e-4)


def test_padding_changes_nothing():
    layer, (q, k) = make_layer(SPECS["gamma per head"]), make_qk()
    lengths = torch.full((B,), 6)
    alone = attention_penalty(layer, q[:, :, :6], k[:, :, :6])
    padded = attention_penalty(layer, q, k, key_lengths=lengths, query_lengths=lengths)
    torch.testing.assert_close(padded, alone, rtol=1e-12, atol=1e-12)
    nobody = attention_penalty(layer, q, k, query_lengths=torch.zeros_like(lengths))
    assert nobody.item() == 0.0


class Largest(TorchDispatchMode):
    """The most numbers that any tensor made inside has."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        for x in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.numel())
        return result


def test_no_matrix_of_weights_is_made_or_saved():
    n, heads, dim = 2048, 2, 16
    layer = Attention(heads * dim, heads, SPECS["gamma learned"])
    x = torch.randn(1, n, heads * dim)
    saved = []

    def note(t):
        saved.append(t.numel())
        return t

    with Largest() as largest:
        q, k, _ = layer.project(x)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            penalty = attention_penalty(layer, q, k, causal=True)
        penalty.backward()
    assert max(saved) <= n * heads * dim
    assert largest.numel <= 3 * n * heads * dim < n * n // 10
    with Largest() as largest:  # and the watch would have seen one
        layer.weights(q.detach(), k.detach())
    assert largest.numel >= n * n


def test_other_activations_are_refused():
    layer = make_layer(AttentionSpec(activation="gelu"))
    with pytest.raises(
        UnsupportedError, match="defined for relu attention, this layer has 'gelu'"
    ):
        attend_and_measure(layer, torch.zeros(1, 3, H * D).double())
