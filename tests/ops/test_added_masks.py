"""Masks made for softmax, to be added to scores, are refused wherever values can be read."""

from functools import partial

import pytest
import torch
from implementations import IMPLEMENTATIONS, device_of, needs_gpu
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from flashpoint import InputError, attention, attention_qkvpacked, attention_varlen

NAN, INF = float("nan"), float("inf")
x = torch.linspace(-1, 1, 160).view(1, 2, 5, 16)
ends = torch.tensor([0, 5])
CALLS = {
    "batch": partial(attention, x, x, x),
    "packed": partial(attention_varlen, *[x[0].transpose(0, 1)] * 3, ends, ends, 5, 5),
    "joined": partial(attention_qkvpacked, torch.stack([x.transpose(1, 2)] * 3, 2)),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
every_name = pytest.mark.parametrize("name", ["bias", "mask"])
on_cpu = pytest.mark.parametrize(
    "impl", [impl for impl in IMPLEMENTATIONS if not hasattr(impl, "marks") or not impl.marks]
)


def added_mask(dtype=torch.float32):
    """What SDPA takes: 0 where a query may look, -inf where not."""
    return torch.zeros(5, 5, dtype=dtype).masked_fill(torch.ones(5, 5).triu(1) > 0, -INF)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@every_name
@every_call
@on_cpu
@pytest.mark.pairwise
def test_added_mask_is_refused_with_advice(impl, call, name, dtype):
    with pytest.raises(InputError) as caught:
        call(**{name: added_mask(dtype)}, impl=impl)
    message = str(caught.value)
    assert message.startswith(f"{name}[0, 1] is -inf; it must be finite.")
    assert {"bias": "Masks act after h", "mask": "multiplies the weights"}[name] in message
    assert message.endswith("To hide keys, pass a bool mask, True where a query may look.")
    assert "\n" not in message
    assert len(message) <= 250


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
@pytest.mark.parametrize("shape", [(), (5,), (5, 1), (1, 2, 5, 5)], ids=str)
@every_name
@pytest.mark.pairwise
def test_any_value_that_is_not_finite_is_found(name, shape, poison):
    given = torch.rand(shape)
    given.view(-1)[-1] = poison
    for value in (given, given.requires_grad_(), torch.nn.Parameter(given.detach())):
        with pytest.raises(InputError, match="must be finite"):
            attention(x, x, x, **{name: value})


@every_name
@on_cpu
def test_large_values_whose_sum_is_infinite_are_served(impl, name):
    given = torch.full((5, 5), 60000.0, dtype=torch.float16)
    assert attention(x, x, x, **{name: given}, impl=impl).isfinite().all()
    given = torch.full((5, 5), 1e38)
    assert not attention(x * 0, x, x * 1e-3, **{name: given}, impl=impl).isnan().any()


def test_numbers_that_hide_are_not_needed_beside_a_bool_mask():
    hidden = added_mask()
    masked = attention(x, x, x, activation="silu", mask=hidden == 0)
    causal = attention(x, x, x, activation="silu", causal=True)
    torch.testing.assert_close(masked, causal)


def is_served(call, given):
    assert call(bias=given).shape == x.shape


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_nobody_reads_values_that_are_traced_or_transformed():
    given = added_mask()
    call = partial(attention, x, x, x, impl="reference")
    torch._dynamo.reset()
    is_served(torch.compile(call, fullgraph=True, backend="aot_eager"), given)
    is_served(lambda bias: torch.func.vmap(lambda b: call(bias=b))(bias[None])[0], given)
    torch.func.grad(lambda bias: call(bias=bias).sum())(given)
    with FlopCounterMode(display=False):
        is_served(call, given)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        is_served(partial(attention, fake, fake, fake), mode.from_tensor(given))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@every_name
def test_gpu_does_not_wait_to_read_values(name):
    on_gpu = x.to(device_of("triton"))
    given = added_mask().to(on_gpu.device)
    attention(on_gpu, on_gpu, on_gpu, **{name: given})
    torch.cuda.set_sync_debug_mode("error")
    try:
        attention(on_gpu, on_gpu, on_gpu, **{name: given})
    finally:
        torch.cuda.set_sync_debug_mode("default")
