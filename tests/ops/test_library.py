"""The operator inside PyTorch: opcheck, compile, export, autocast, checkpointing, transforms."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from implementations import FAST, IMPLEMENTATIONS, compiler_of, device_of, operator, serves
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from flashpoint import UnsupportedError, attention, attention_varlen

every_impl = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
every_fast = pytest.mark.parametrize("impl", FAST)


def qkv(impl, *shape, dtype=torch.float32, grad=True):
    """q, k, v as a linear layer leaves them: [B, L, H, D] in memory, [B, H, L, D] in shape."""
    B, H, L, D = shape
    torch.manual_seed(0)
    x = torch.randn(3, B, L, H, D, device=device_of(impl)).to(dtype).transpose(2, 3)
    return [t.requires_grad_(grad) for t in x.detach().unbind()]


def terms(activation="relu", alpha=1.0, length="visible", left=None, right=None):
    return (activation, alpha, length, 1.0, None, 0.0, left, right)


@every_fast
@pytest.mark.parametrize("case", ["plain", "bias-mask", "bool-mask", "lengths", "window"])
def test_attention_passes_opcheck_on_permuted_inputs(impl, case):
    q, k, v = qkv(impl, 2, 4, 9, 8)
    bias = torch.randn(4, 9, 9, device=q.device)[None].requires_grad_()
    mask = torch.rand(2, 1, 9, 9, device=q.device).requires_grad_()
    lengths = torch.tensor([3, 9], device=q.device)
    args = {
        "plain": (q, k, v, None, None, None, *terms()),
        "bias-mask": (q, k, v, bias, mask, None, *terms("silu", right=0)),
        "bool-mask": (q, k, v, None, mask.detach() > 0.5, None, *terms("gelu", 0.5)),
        "lengths": (q, k, v, None, None, lengths, *terms("sigmoid", length="keys")),
        "window": (q, k, v, None, None, None, *terms("relu2", left=3, right=1)),
    }[case]
    torch.library.opcheck(operator(impl, "attention").default, args)


@every_fast
def test_small_inputs_with_swapped_axes_pass_opcheck(impl):
    q = torch.randn(3, 2, 4, 8, device=device_of(impl)).transpose(0, 1)
    assert attention(q, q, q, impl=impl).is_contiguous()
    args = (q, q, q, None, None, None, *terms())
    torch.library.opcheck(operator(impl, "attention").default, args)


@every_fast
@pytest.mark.parametrize("scored", [False, True])
def test_varlen_passes_opcheck_on_permuted_inputs(impl, scored):
    q, k, v = (t[0].transpose(0, 1) for t in qkv(impl, 1, 4, 9, 8, grad=False))
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    bias = torch.randn(1, 4, 6, 6, device=q.device).requires_grad_() if scored else None
    mask = torch.rand(2, 1, 1, 6, device=q.device).requires_grad_() if scored else None
    ends = torch.tensor([0, 3, 9], device=q.device)
    args = (q, k, v, bias, mask, ends, ends, 6, 6, *terms(right=0))
    torch.library.opcheck(operator(impl, "attention_varlen").default, args)


@every_fast
def test_backward_operators_pass_opcheck(impl):
    q, k, v = qkv(impl, 2, 4, 9, 8, grad=False)
    do = torch.randn_like(q)
    bias = torch.randn(1, 4, 9, 9, device=q.device)
    args = (do, q, k, v, bias, None, None, *terms(), True, False)
    torch.library.opcheck(operator(impl, "attention_backward").default, args)
    ends = torch.tensor([0, 3, 9], device=q.device)
    packed = [t[0].transpose(0, 1) for t in (do, q, k, v)]
    args = (*packed, None, None, ends, ends, 6, 6, *terms(), False, False)
    torch.library.opcheck(operator(impl, "attention_varlen_backward").default, args)


def loss_and_gradients(call, inputs):
    loss = call(*inputs).square().sum()
    return [loss, *torch.autograd.grad(loss, inputs)]


@pytest.mark.slow
@every_impl
def test_compile_takes_the_whole_graph_with_dynamic_shapes(impl):
    def call(q, k, v):
        bias = torch.linspace(-1, 1, k.shape[2], device=k.device)
        o = attention(q, k, v, causal=True, bias=bias, activation="gelu", impl=impl)
        return o + attention(q, k, v, length="keys", window=(3, None), impl=impl)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=compiler_of(impl))
    for shape in ((2, 3, 17, 8), (1, 2, 33, 16), (4, 1, 5, 8)):
        inputs = qkv(impl, *shape)
        got, expected = (loss_and_gradients(f, inputs) for f in (compiled, call))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_inductor_compiles_the_reference():
    def call(q, k, v):
        return attention(q, k, v, causal=True, activation="gelu", impl="reference")

    torch._dynamo.reset()
    inputs = qkv("reference", 2, 3, 17, 8)
    compiled = torch.compile(call, fullgraph=True, dynamic=True)
    got, expected = (loss_and_gradients(f, inputs) for f in (compiled, call))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@every_impl
def test_compiled_varlen_takes_the_whole_graph(impl):
    def call(q, k, v, ends):
        return attention_varlen(q, k, v, ends, ends, 8, 8, causal=True, impl=impl)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=compiler_of(impl))
    for ends in ([0, 3, 9], [0, 1, 8, 11, 15]):
        ends = torch.tensor(ends, device=device_of(impl))
        size = (int(ends[-1]), 2, 8)
        inputs = [torch.randn(size, device=ends.device).requires_grad_() for _ in range(3)]
        got, expected = (
            loss_and_gradients(lambda *x, f=f, ends=ends: f(*x, ends), inputs)
            for f in (compiled, call)
        )
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@every_impl
def test_batch_size_does_not_recompile(impl):
    compiles = 0

    def count(graph, inputs):
        nonlocal compiles
        compiles += 1
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *x: attention(*x, impl=impl), backend=count, dynamic=True, fullgraph=True
    )
    for batch in (2, 3, 5, 7):
        compiled(*qkv(impl, batch, 3, 17, 8, grad=False))
    assert compiles == 1


@pytest.mark.slow
def test_compile_works_as_the_first_call_of_a_process():
    code = """
import torch, flashpoint
q = torch.randn(1, 2, 9, 8, requires_grad=True)
call = torch.compile(lambda q: flashpoint.attention(q, q, q, causal=True), fullgraph=True)
loss = call(q).sum()
loss.backward()
expected = flashpoint.attention(q, q, q, causal=True, impl="reference").sum()
assert torch.allclose(loss, expected, atol=1e-5), (loss, expected)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@every_impl
def test_export_keeps_the_result(impl):
    class Block(torch.nn.Module):
        def forward(self, q, k, v):
            return attention(q, k, v, causal=True, activation="silu", impl=impl)

    inputs = tuple(qkv(impl, 2, 3, 17, 8, grad=False))
    length = torch.export.Dim("length", min=2, max=512)
    shapes = {name: {2: length} for name in "qkv"}
    program = torch.export.export(Block(), inputs, dynamic_shapes=shapes)
    other = tuple(qkv(impl, 2, 3, 40, 8, grad=False))
    torch.testing.assert_close(program.module()(*other), Block()(*other))


@every_impl
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_keeps_the_gradients(impl, use_reentrant):
    def call(q, k, v):
        return attention(q.sin(), k.cos(), v, causal=True, impl=impl)

    def gradients(f):
        inputs = qkv(impl, 2, 3, 17, 8)
        f(*inputs).square().sum().backward()
        return [t.grad for t in inputs]

    got = gradients(lambda *x: checkpoint(call, *x, use_reentrant=use_reentrant))
    torch.testing.assert_close(got, gradients(call))


@every_impl
def test_functional_gradients_equal_autograd(impl):
    def loss(q, k, v):
        return attention(q, k, v, window=(4, 0), impl=impl).square().sum()

    inputs = qkv(impl, 2, 3, 17, 8)
    got = torch.func.grad(loss, argnums=(0, 1, 2))(*[t.detach() for t in inputs])
    torch.testing.assert_close(list(got), list(torch.autograd.grad(loss(*inputs), inputs)))


@every_impl
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_its_dtype_like_sdpa(impl, dtype):
    q, k, v = qkv(impl, 2, 3, 17, 8)
    bias = torch.randn(17, device=q.device, requires_grad=True)
    with torch.autocast(q.device.type, dtype):
        o = attention(q, k.to(dtype), v, bias=bias, impl=impl)
        assert o.dtype == F.scaled_dot_product_attention(q, k, v).dtype == dtype
    grads = torch.autograd.grad(o.float().sum(), (q, bias))
    assert [g.dtype for g in grads] == [torch.float32, torch.float32]
    expected = attention(*(t.to(dtype) for t in (q, k, v)), bias=bias, impl=impl)
    torch.testing.assert_close(o, expected, rtol=0, atol=0)


def test_autocast_of_another_device_changes_nothing():
    q = torch.randn(1, 2, 5, 8, requires_grad=True)
    plain = attention(q, q, q)
    (dq,) = torch.autograd.grad(plain.sum(), q)
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)  # as torch.autocast does where there is a GPU
    try:
        o = attention(q, q, q)
        (grad,) = torch.autograd.grad(o.sum(), q)
    finally:
        torch.set_autocast_enabled("cuda", before)
    assert torch.equal(o, plain)
    assert torch.equal(grad, dq)


@every_fast
def test_operator_itself_follows_autocast(impl):
    q, k, v = qkv(impl, 2, 3, 17, 8)
    dtype = torch.bfloat16 if serves(impl, torch.bfloat16) else torch.float16
    with torch.autocast(q.device.type, dtype):
        o = operator(impl, "attention")(q, k, v, None, None, None, *terms())
        expected = attention(q, k, v, impl=impl)
    assert o.dtype == dtype
    torch.testing.assert_close(o, expected, rtol=0, atol=0)
    assert torch.autograd.grad(o.float().sum(), q)[0].dtype == torch.float32


@every_fast
@pytest.mark.parametrize("length", [4, 200])
def test_forward_mode_is_refused_not_lost(impl, length):
    q, k, v = qkv(impl, 1, 2, length, 8, grad=False)

    def call(q):
        return attention(q, k, v, impl=impl)

    with pytest.raises(UnsupportedError, match="forward-mode"):
        torch.func.jvp(call, (q,), (q,))
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="forward-mode"):
        call(forward_ad.make_dual(q, q))


@every_fast
def test_vmap_is_refused_with_advice(impl):
    q, k, v = qkv(impl, 2, 2, 9, 8, grad=False)
    with pytest.raises(UnsupportedError, match="Fold the axis into the batch"):
        torch.func.vmap(lambda q, k, v: attention(q[None], k[None], v[None], impl=impl))(q, k, v)


@every_fast
@pytest.mark.filterwarnings("ignore")
def test_traced_call_follows_its_inputs(impl):
    q, k, v = qkv(impl, 1, 2, 4, 8, grad=False)
    traced = torch.jit.trace(lambda q, k, v: attention(q, k, v, impl=impl), (q, k, v))
    torch.testing.assert_close(traced(k, v, q), attention(k, v, q, impl=impl))


@every_fast
def test_flops_are_two_products_forward_and_five_backward(impl):
    q, k, v = qkv(impl, 2, 4, 32, 16)
    product = 2 * 2 * 4 * 32 * 32 * 16
    with FlopCounterMode(display=False) as counter:
        o = attention(q, k, v, causal=True, impl=impl)
    assert counter.get_total_flops() == 2 * product
    with FlopCounterMode(display=False) as counter:
        o.sum().backward()
    assert counter.get_total_flops() == 5 * product


@every_fast
def test_varlen_flops_count_each_sequence(impl):
    q = torch.randn(9, 2, 8, device=device_of(impl))
    ends = torch.tensor([0, 3, 9], device=q.device)
    with FlopCounterMode(display=False) as counter:
        attention_varlen(q, q, q, ends, ends, 6, 6, impl=impl)
    assert counter.get_total_flops() == 4 * 2 * 8 * (3 * 3 + 6 * 6)
    q, ends = q.to("meta"), ends.to("meta")
    with FlopCounterMode(display=False) as counter:
        attention_varlen(q, q, q, ends, ends, 6, 6, impl=impl)
    assert counter.get_total_flops() == 4 * 2 * 8 * 2 * (6 * 6)  # all that can be known


@every_fast
def test_shapes_are_inferred_on_the_meta_device(impl):
    q = torch.empty(2, 4, 7, 8, device="meta")
    k, v = torch.empty(2, 2, 9, 8, device="meta"), torch.empty(2, 2, 9, 5, device="meta")
    assert attention(q, k, v).shape == (2, 4, 7, 5)


@every_fast
def test_backward_saves_the_inputs_and_nothing_else(impl):
    saved = []
    q, k, v = qkv(impl, 2, 3, 50, 8)
    bias = torch.randn(50, device=q.device, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        attention(q, k, v, bias=bias, causal=True, impl=impl)
    pointers = {t.data_ptr() for t in saved}
    assert pointers == {t.data_ptr() for t in (q, k, v, bias)}
