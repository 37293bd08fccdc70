"""The operators inside PyTorch: opcheck, compile, export, autocast, checkpointing, transforms."""

import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from implementations import (
    FAST,
    IMPLEMENTATIONS,
    compiler_of,
    device_of,
    opcheck_backward,
    operator,
    serves,
)
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from flashpoint import (
    HeadNorm,
    UnsupportedError,
    attention,
    attention_qkvpacked,
)
from flashpoint.ops.spec import Terms

every_impl = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
every_fast = pytest.mark.parametrize("impl", FAST)


def qkv(impl, *shape, dtype=torch.float32, grad=True):
    """q, k, v as a linear layer leaves them: [B, L, H, D] in memory, [B, H, L, D] in shape."""
    B, H, L, D = shape
    torch.manual_seed(0)
    x = torch.randn(3, B, L, H, D, device=device_of(impl)).to(dtype).transpose(2, 3)
    return [t.requires_grad_(grad) for t in x.detach().unbind()]


def joined(impl, B, H, L, D, grad=True):
    """qkv and the gains of q and k."""
    torch.manual_seed(0)
    sizes = ((B, L, 3, H, D), (D,), (D,))
    return [torch.randn(size, device=device_of(impl), requires_grad=grad) for size in sizes]


def attend_joined(qkv, q_gain, k_gain, **options):
    norms = {"q_norm": HeadNorm("layer", q_gain), "k_norm": HeadNorm("rms", k_gain, 1e-5)}
    return attention_qkvpacked(qkv, **norms, **options)


def terms(activation="relu", alpha=1.0, length="visible", left=None, right=None):
    return Terms(activation, alpha, length, left=left, right=right)


def normed(q_kind="layer", k_kind="rms", *given, **options):
    """Norms and terms as the operator of packed q, k and v lists them."""
    return (q_kind, 1e-6, k_kind, 1e-5, *terms(*given, **options))


class Form(NamedTuple):
    """A public function and its operator.

    Attributes:
        make: (impl, B, H, L, D) -> the three tensors that it differentiates.
        attend: of these and options.
        name, rest: of the operator, and its arguments behind these tensors, bias, mask, lengths.
        lengths: which axes of the tensors are as long as the sequence.
    """

    make: Callable
    attend: Callable
    name: str
    rest: tuple
    lengths: tuple[int | None, ...]

    def call(self, impl, **options):
        return lambda *tensors: self.attend(*tensors, **options, impl=impl)

    def op(self, impl):
        """The operator itself, as a function of the tensors."""
        return lambda *x: operator(impl, self.name)(*x, None, None, None, *self.rest)


FORMS = {
    "batch": Form(qkv, attention, "attention", terms(), (2, 2, 2)),
    "joined": Form(joined, attend_joined, "attention_qkvpacked", normed(), (1, None, None)),
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


@every_fast
@pytest.mark.parametrize("case", ["plain", "bias-mask", "bool-mask", "lengths", "window"])
@pytest.mark.long_interpreted
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
@pytest.mark.parametrize("case", ["bare", "gains", "one gain", "bias-mask", "lengths", "strided"])
@pytest.mark.long_interpreted
def test_packed_attention_passes_opcheck(impl, case):
    qkv, q_gain, k_gain = joined(impl, 2, 3, 9, 8)
    bias = torch.randn(1, 3, 9, 9, device=qkv.device, requires_grad=True)
    mask = torch.rand(2, 1, 1, 9, device=qkv.device, requires_grad=True)
    lengths = torch.tensor([3, 9], device=qkv.device)
    apart = qkv.detach().permute(2, 0, 3, 1, 4).contiguous().permute(1, 3, 0, 2, 4)
    args = {
        "bare": (qkv, None, None, None, None, None, *normed("none", "none", right=0)),
        "gains": (qkv, q_gain, k_gain, None, None, None, *normed()),
        "one gain": (qkv, None, k_gain, None, None, None, *normed("rms", "layer", "gelu")),
        "bias-mask": (
            *(qkv, q_gain, None, bias, mask, None),
            *normed("layer", "none", "silu", left=3, right=1),
        ),
        "lengths": (qkv, q_gain, k_gain, None, mask.detach() > 0.5, lengths, *normed()),
        "strided": (apart.requires_grad_(), q_gain, k_gain, None, None, None, *normed()),
    }[case]
    torch.library.opcheck(operator(impl, "attention_qkvpacked").default, args)


@every_fast
def test_small_inputs_with_swapped_axes_pass_opcheck(impl):
    q = torch.randn(3, 2, 4, 8, device=device_of(impl)).transpose(0, 1)
    assert attention(q, q, q, impl=impl).is_contiguous()
    args = (q, q, q, None, None, None, *terms())
    torch.library.opcheck(operator(impl, "attention").default, args)


@every_fast
@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.long_interpreted
def test_varlen_passes_opcheck_on_permuted_inputs(impl, scored):
    q, k, v = (t[0].transpose(0, 1) for t in qkv(impl, 1, 4, 9, 8, grad=False))
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    bias = torch.randn(1, 4, 6, 6, device=q.device).requires_grad_() if scored else None
    mask = torch.rand(2, 1, 1, 6, device=q.device).requires_grad_() if scored else None
    ends = torch.tensor([0, 3, 9], device=q.device)
    args = (q, k, v, bias, mask, ends, ends, 6, 6, *terms(right=0))
    torch.library.opcheck(operator(impl, "attention_varlen").default, args)


@every_fast
@pytest.mark.long_interpreted
def test_backward_operators_pass_opcheck(impl):
    q, k, v = qkv(impl, 2, 4, 9, 8, grad=False)
    do = torch.randn_like(q)
    bias = torch.randn(1, 4, 1, 9, device=q.device)
    args = (do, q, k, v, bias, None, None, *terms(), True, False)
    opcheck_backward(operator(impl, "attention_backward").default, args)
    ends = torch.tensor([0, 3, 9], device=q.device)
    packed = [t[0].transpose(0, 1) for t in (do, q, k, v)]
    args = (*packed, None, None, ends, ends, 6, 6, *terms(), False, False)
    opcheck_backward(operator(impl, "attention_varlen_backward").default, args)
    x, q_gain, k_gain = joined(impl, 2, 4, 9, 8, grad=False)
    op, do = operator(impl, "attention_qkvpacked_backward").default, do.transpose(1, 2)
    opcheck_backward(op, (do, x, q_gain, k_gain, bias, None, None, *normed(), True, False))
    opcheck_backward(op, (do, x, None, k_gain, None, None, None, *normed(), False, False))


def loss_and_gradients(call, inputs):
    loss = call(*inputs).square().sum()
    return [loss, *torch.autograd.grad(loss, inputs)]


@pytest.mark.slow
@every_form
@every_fast
def test_compile_takes_the_whole_graph_with_dynamic_shapes(impl, form):
    def call(*tensors):
        length = tensors[0].shape[form.lengths[0]]
        bias = torch.linspace(-1, 1, length, device=tensors[0].device)
        causal = form.call(impl, causal=True, bias=bias, activation="gelu")
        return causal(*tensors) + form.call(impl, length="keys", window=(3, None))(*tensors)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=compiler_of(impl))
    for shape in ((2, 3, 17, 8), (1, 2, 33, 16), (4, 1, 5, 8)):
        inputs = form.make(impl, *shape)
        got, expected = (loss_and_gradients(f, inputs) for f in (compiled, call))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_inductor_compiles_the_reference():
    """Whole and with dynamic shapes; what fast ones have around them is plain PyTorch too."""
    call = FORMS["batch"].call("reference", causal=True, activation="gelu")
    torch._dynamo.reset()
    inputs = qkv("reference", 2, 3, 17, 8)
    compiled = torch.compile(call, fullgraph=True, dynamic=True)
    got, expected = (loss_and_gradients(f, inputs) for f in (compiled, call))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@every_form
@every_impl
def test_batch_size_does_not_recompile(impl, form):
    compiles = 0

    def count(graph, inputs):
        nonlocal compiles
        compiles += 1
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(form.call(impl), backend=count, dynamic=True, fullgraph=True)
    for batch in (2, 3, 5, 7):
        compiled(*form.make(impl, batch, 3, 17, 8, grad=False))
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
@every_form
@every_impl
def test_export_keeps_the_result(impl, form):
    class Block(torch.nn.Module):
        def forward(self, x, y, z):
            return form.call(impl, causal=True, activation="silu")(x, y, z)

    length = torch.export.Dim("length", min=2, max=512)
    shapes = [None if axis is None else {axis: length} for axis in form.lengths]
    inputs = tuple(form.make(impl, 2, 3, 17, 8, grad=False))
    program = torch.export.export(
        Block(), inputs, dynamic_shapes=dict(zip("xyz", shapes, strict=True))
    )
    other = tuple(form.make(impl, 2, 3, 40, 8, grad=False))
    torch.testing.assert_close(program.module()(*other), Block()(*other))


@every_form
@every_impl
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_keeps_the_gradients(impl, form, use_reentrant):
    def call(x, *others):
        return form.call(impl, causal=True)(x.sin(), *others)

    def gradients(f):
        inputs = form.make(impl, 2, 3, 17, 8)
        f(*inputs).square().sum().backward()
        return [t.grad for t in inputs]

    got = gradients(lambda *x: checkpoint(call, *x, use_reentrant=use_reentrant))
    torch.testing.assert_close(got, gradients(call))


@every_form
@every_impl
def test_functional_gradients_equal_autograd(impl, form):
    def loss(*inputs):
        return form.call(impl, window=(4, 0))(*inputs).square().sum()

    inputs = form.make(impl, 2, 3, 17, 8)
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


@every_impl
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_qkv_and_keeps_the_gains(impl, dtype):
    inputs = joined(impl, 2, 3, 17, 8)
    call = FORMS["joined"].call(impl)
    with torch.autocast(inputs[0].device.type, dtype):
        o = call(*inputs)
    assert o.dtype == dtype
    grads = torch.autograd.grad(o.float().sum(), inputs)
    assert {g.dtype for g in grads} == {torch.float32}
    assert torch.equal(o, call(inputs[0].to(dtype), *inputs[1:]))


@every_form
@every_fast
def test_operator_itself_follows_autocast(impl, form):
    inputs = form.make(impl, 2, 3, 17, 8)
    dtype = torch.bfloat16 if serves(impl, torch.bfloat16) else torch.float16
    with torch.autocast(inputs[0].device.type, dtype):
        o = form.op(impl)(*inputs)
        assert torch.equal(o, form.call(impl)(*inputs))
    assert o.dtype == dtype
    for grad in torch.autograd.grad(o.float().sum(), inputs[:2]):
        assert grad.dtype == torch.float32


@every_form
@every_fast
@pytest.mark.parametrize("through", ["eager", "dispatched"])
def test_second_derivatives_are_refused(impl, form, through):
    inputs = form.make(impl, 2, 3, 4, 8)
    call = form.call(impl) if through == "eager" else form.op(impl)
    first = torch.autograd.grad(call(*inputs).sum(), inputs, create_graph=True)
    with pytest.raises(UnsupportedError, match="impl='reference'"):
        torch.autograd.grad(first[1].sum(), inputs[0])


@every_form
@every_fast
@pytest.mark.parametrize("length", [4, 200])
def test_forward_mode_is_refused_not_lost(impl, form, length):
    x, *others = form.make(impl, 1, 2, length, 8, grad=False)

    def call(x):
        return form.call(impl)(x, *others)

    with pytest.raises(UnsupportedError, match="forward-mode"):
        torch.func.jvp(call, (x,), (x,))
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="forward-mode"):
        call(forward_ad.make_dual(x, x))


@every_form
@every_fast
def test_vmap_is_refused_with_advice(impl, form):
    x, *others = form.make(impl, 1, 2, 9, 8, grad=False)
    with pytest.raises(UnsupportedError, match="Fold the axis into the batch"):
        torch.func.vmap(lambda x: form.call(impl)(x, *others))(torch.stack([x, x]))


@every_fast
@pytest.mark.filterwarnings("ignore")
def test_traced_call_follows_its_inputs(impl):
    q, k, v = qkv(impl, 1, 2, 4, 8, grad=False)
    traced = torch.jit.trace(lambda q, k, v: attention(q, k, v, impl=impl), (q, k, v))
    torch.testing.assert_close(traced(k, v, q), attention(k, v, q, impl=impl))


@every_form
@every_fast
def test_flops_are_two_products_forward_and_five_backward(impl, form):
    inputs = form.make(impl, 2, 4, 32, 16)
    product = 2 * 2 * 4 * 32 * 32 * 16
    with FlopCounterMode(display=False) as counter:
        o = form.call(impl, causal=True)(*inputs)
    assert counter.get_total_flops() == 2 * product
    with FlopCounterMode(display=False) as counter:
        o.sum().backward()
    assert counter.get_total_flops() == 5 * product


@every_form
@every_fast
def test_backward_saves_the_inputs_and_nothing_else(impl, form):
    saved = []
    inputs = form.make(impl, 2, 3, 50, 8)
    bias = torch.randn(50, device=inputs[0].device, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        form.call(impl, bias=bias, causal=True)(*inputs)
    assert {t.data_ptr() for t in saved} == {t.data_ptr() for t in (*inputs, bias)}
    assert sum(t.nbytes for t in saved) == sum(t.nbytes for t in (*inputs, bias))
