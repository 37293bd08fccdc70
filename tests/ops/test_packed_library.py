"""Packed attention inside PyTorch: opcheck, compile, export, autocast, transforms, memory."""

import pytest
import torch
from implementations import FAST, IMPLEMENTATIONS, compiler_of, device_of, operator, serves
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from flashpoint import HeadNorm, UnsupportedError, attention_qkvpacked

every_impl = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
every_fast = pytest.mark.parametrize("impl", FAST)


def leaves(impl, B=2, L=17, H=3, D=8, grad=True):
    """qkv and the gains of q and k."""
    torch.manual_seed(0)
    sizes = ((B, L, 3, H, D), (D,), (D,))
    return [torch.randn(size, device=device_of(impl), requires_grad=grad) for size in sizes]


def call_of(impl, **options):
    """The call as a function of ``leaves``."""

    def call(qkv, q_gain, k_gain):
        norms = {"q_norm": HeadNorm("layer", q_gain), "k_norm": HeadNorm("rms", k_gain, 1e-5)}
        return attention_qkvpacked(qkv, **norms, **options, impl=impl)

    return call


def flat(q_kind="layer", k_kind="rms", activation="relu", left=None, right=None):
    """Norms and terms as the operators list them."""
    norm = (q_kind, 1e-6, k_kind, 1e-5)
    return (*norm, activation, 1.0, "visible", 1.0, None, 0.0, left, right)


def loss_and_gradients(call, inputs):
    loss = call(*inputs).square().sum()
    return [loss, *torch.autograd.grad(loss, inputs)]


@every_fast
@pytest.mark.parametrize("case", ["bare", "gains", "one gain", "bias-mask", "lengths"])
def test_operator_passes_opcheck(impl, case):
    qkv, q_gain, k_gain = leaves(impl, L=9)
    bias = torch.randn(1, 3, 9, 9, device=qkv.device, requires_grad=True)
    mask = torch.rand(2, 1, 1, 9, device=qkv.device, requires_grad=True)
    lengths = torch.tensor([3, 9], device=qkv.device)
    args = {
        "bare": (qkv, None, None, None, None, None, *flat("none", "none", right=0)),
        "gains": (qkv, q_gain, k_gain, None, None, None, *flat()),
        "one gain": (qkv, None, k_gain, None, None, None, *flat("rms", "layer", "gelu")),
        "bias-mask": (qkv, q_gain, None, bias, mask, None, *flat("layer", "none", "silu", 3, 1)),
        "lengths": (qkv, q_gain, k_gain, None, mask.detach() > 0.5, lengths, *flat()),
    }[case]
    torch.library.opcheck(operator(impl, "attention_qkvpacked").default, args)


@every_fast
def test_strided_inputs_pass_opcheck(impl):
    qkv, q_gain, k_gain = leaves(impl, L=9, grad=False)
    qkv = qkv.permute(2, 0, 3, 1, 4).contiguous().permute(1, 3, 0, 2, 4).requires_grad_()
    args = (qkv, q_gain, k_gain, None, None, None, *flat())
    torch.library.opcheck(operator(impl, "attention_qkvpacked").default, args)


@every_fast
def test_backward_operator_passes_opcheck(impl):
    qkv, q_gain, k_gain = leaves(impl, L=9, grad=False)
    do = torch.randn(2, 9, 3, 8, device=qkv.device)
    bias = torch.randn(1, 3, 1, 9, device=qkv.device)
    op = operator(impl, "attention_qkvpacked_backward").default
    torch.library.opcheck(op, (do, qkv, q_gain, k_gain, bias, None, None, *flat(), True, False))
    torch.library.opcheck(op, (do, qkv, None, k_gain, None, None, None, *flat(), False, False))


@pytest.mark.slow
@every_impl
def test_compile_takes_the_whole_graph_with_dynamic_shapes(impl):
    def call(qkv, q_gain, k_gain):
        bias = torch.linspace(-1, 1, qkv.shape[1], device=qkv.device)
        causal = call_of(impl, causal=True, bias=bias, activation="gelu")
        return causal(qkv, q_gain, k_gain) + attention_qkvpacked(qkv, length="keys", impl=impl)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=compiler_of(impl))
    for shape in ((2, 17, 3, 8), (1, 33, 2, 16), (4, 5, 1, 8)):
        inputs = leaves(impl, *shape)
        got, expected = (loss_and_gradients(f, inputs) for f in (compiled, call))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@every_impl
def test_batch_size_does_not_recompile(impl):
    compiles = 0

    def count(graph, inputs):
        nonlocal compiles
        compiles += 1
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(call_of(impl), backend=count, dynamic=True, fullgraph=True)
    for batch in (2, 3, 5, 7):
        compiled(*leaves(impl, batch, grad=False))
    assert compiles == 1


@pytest.mark.slow
@every_impl
def test_export_keeps_the_result(impl):
    class Block(torch.nn.Module):
        def forward(self, qkv, q_gain, k_gain):
            return call_of(impl, causal=True, activation="silu")(qkv, q_gain, k_gain)

    length = torch.export.Dim("length", min=2, max=512)
    shapes = {"qkv": {1: length}, "q_gain": None, "k_gain": None}
    inputs = tuple(leaves(impl, grad=False))
    program = torch.export.export(Block(), inputs, dynamic_shapes=shapes)
    other = tuple(leaves(impl, L=40, grad=False))
    torch.testing.assert_close(program.module()(*other), Block()(*other))


@every_impl
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_keeps_the_gradients(impl, use_reentrant):
    call, inputs = call_of(impl, causal=True), leaves(impl)

    def recomputed(*x):
        return checkpoint(call, *x, use_reentrant=use_reentrant)

    def gradients(f):
        fresh = [x.detach().requires_grad_() for x in inputs]
        f(*fresh).square().sum().backward()
        return [x.grad for x in fresh]

    torch.testing.assert_close(gradients(recomputed), gradients(call))


@every_impl
def test_functional_gradients_equal_autograd(impl):
    def loss(*inputs):
        return call_of(impl, window=(4, 0))(*inputs).square().sum()

    inputs = leaves(impl)
    got = torch.func.grad(loss, argnums=(0, 1, 2))(*[x.detach() for x in inputs])
    torch.testing.assert_close(list(got), list(torch.autograd.grad(loss(*inputs), inputs)))


@every_impl
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_qkv_and_keeps_the_gains(impl, dtype):
    qkv, q_gain, k_gain = leaves(impl)
    with torch.autocast(qkv.device.type, dtype):
        o = call_of(impl)(qkv, q_gain, k_gain)
    assert o.dtype == dtype
    grads = torch.autograd.grad(o.float().sum(), (qkv, q_gain, k_gain))
    assert {g.dtype for g in grads} == {torch.float32}
    assert torch.equal(o, call_of(impl)(qkv.to(dtype), q_gain, k_gain))


@every_fast
def test_operator_itself_follows_autocast(impl):
    qkv, q_gain, k_gain = leaves(impl)
    dtype = torch.bfloat16 if serves(impl, torch.bfloat16) else torch.float16
    with torch.autocast(qkv.device.type, dtype):
        op = operator(impl, "attention_qkvpacked")
        o = op(qkv, q_gain, k_gain, None, None, None, *flat())
        assert torch.equal(o, call_of(impl)(qkv, q_gain, k_gain))
    assert o.dtype == dtype
    assert torch.autograd.grad(o.float().sum(), q_gain)[0].dtype == torch.float32


@every_fast
@pytest.mark.parametrize("through", ["eager", "dispatched"])
def test_second_derivatives_are_refused(impl, through):
    inputs = leaves(impl, L=4)
    op = operator(impl, "attention_qkvpacked")
    calls = {
        "eager": call_of(impl),
        "dispatched": lambda *x: op(*x, None, None, None, *flat()),
    }
    first = torch.autograd.grad(calls[through](*inputs).sum(), inputs, create_graph=True)
    with pytest.raises(UnsupportedError, match="impl='reference'"):
        torch.autograd.grad(first[1].sum(), inputs[0])


@every_fast
def test_forward_mode_is_refused_not_lost(impl):
    qkv, *gains = leaves(impl, grad=False)

    def call(qkv):
        return call_of(impl)(qkv, *gains)

    with pytest.raises(UnsupportedError, match="forward-mode"):
        torch.func.jvp(call, (qkv,), (qkv,))
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="forward-mode"):
        call(forward_ad.make_dual(qkv, qkv))


@every_fast
def test_vmap_is_refused_with_advice(impl):
    qkv, *gains = leaves(impl, grad=False)
    with pytest.raises(UnsupportedError, match="Fold the axis into the batch"):
        torch.func.vmap(lambda x: call_of(impl)(x[None], *gains))(qkv)


@every_fast
def test_flops_are_two_products_forward_and_five_backward(impl):
    inputs = leaves(impl, 2, 32, 4, 16)
    product = 2 * 2 * 4 * 32 * 32 * 16
    with FlopCounterMode(display=False) as counter:
        o = call_of(impl, causal=True)(*inputs)
    assert counter.get_total_flops() == 2 * product
    with FlopCounterMode(display=False) as counter:
        o.sum().backward()
    assert counter.get_total_flops() == 5 * product


@every_fast
def test_backward_saves_qkv_and_the_gains_and_nothing_else(impl):
    saved = []
    inputs = leaves(impl, L=50)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        call_of(impl, causal=True)(*inputs)
    assert {t.data_ptr() for t in saved} == {t.data_ptr() for t in inputs}
    assert sum(t.untyped_storage().nbytes() for t in saved) == sum(t.nbytes for t in inputs)


@every_fast
def test_same_call_twice_gives_the_same_bits(impl):
    inputs = leaves(impl, 3, 70, 3, 16)
    first, second = (loss_and_gradients(call_of(impl), inputs) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
