"""The ways of a GPU: timing, graphs, streams, devices, far offsets, memory."""

from functools import partial

import pytest
import torch
from implementations import HAS_TRITON, needs_gpu
from numerics import assert_exact, assert_within_budget, make_inputs, make_qkv, run
from results import assert_same, evaluate

from flashpoint import attention

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

on_a_gpu = pytest.mark.gpu


def training_step(tensors, do, **options):
    """Output and gradients, without a graph that outlives the call."""
    leaves = [t.requires_grad_() for t in tensors.values()]
    o = attention(*leaves, **options)
    return [o.detach(), *torch.autograd.grad(o, leaves, do)]


@on_a_gpu
@needs_gpu
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"activation": "gelu"}], ids=str)
def test_results_do_not_depend_on_timing(options):
    tensors = make_qkv((4, 8, 2, 700, 1000, 64, 64), torch.bfloat16)
    do = torch.randn_like(attention(**tensors))
    first = training_step(tensors, do, **options)
    for _ in range(3):
        again = training_step(tensors, do, **options)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@on_a_gpu
@needs_gpu
def test_cuda_graph_replays_forward_and_backward_on_new_inputs():
    tensors = make_qkv((2, 4, 2, 130, 200, 64, 64), torch.float16)
    do = torch.randn_like(attention(**tensors))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # as PyTorch's manual has it: a few calls beforehand
        for _ in range(3):
            training_step(tensors, do, causal=True)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = training_step(tensors, do, causal=True)
    for seed in (1, 2):
        fresh = make_qkv((2, 4, 2, 130, 200, 64, 64), torch.float16, seed)
        with torch.no_grad():
            for name, t in tensors.items():
                t.copy_(fresh[name])
        graph.replay()
        expected = training_step(fresh, do, causal=True)
        assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


@on_a_gpu
@needs_gpu
@pytest.mark.parametrize(
    ("tokens", "backward_launches"),
    [(49, 1), (577, 2), (1100, 2)],
    ids=["pointers", "both sides", "rest"],
)
def test_replays_follow_tensors_that_move(tokens, backward_launches, monkeypatch):
    """Past Triton and by its own way, by pointers and descriptors: the same bits, and right."""
    from flashpoint.ops.gpu import dispatch, launcher, replay, versions

    if tokens == 577 and dispatch.serves(torch.device("cuda")):
        backward_launches = 1  # of both sides: rows and columns are two descriptions of a tensor
    shape = (1, 6, 6, tokens, tokens, 64, 64)
    monkeypatch.setattr(replay, "_recordings", {})
    monkeypatch.setattr(launcher, "MOST_MAPS", 3)
    kept = []  # so that addresses move
    assert_exact("triton", torch.bfloat16, make_inputs(shape))  # recorded
    for seed in (1, 2, 3, 1):
        kept.append(make_inputs(shape, seed))
        assert_exact("triton", torch.bfloat16, kept[-1])
        short = run("triton", torch.bfloat16, kept[-1])
        with monkeypatch.context() as patched:
            patched.setattr(replay, "is_watched", lambda: True)
            own = run("triton", torch.bfloat16, kept[-1])
        kept += [short, own]
        assert all(torch.equal(short[name], own[name]) for name in own)
    recorders = list(replay._recordings.values())
    launches = [1, backward_launches]
    assert [len(recorder.launches) for recorder in recorders] == launches
    if versions.launcher_form() is not None:
        assert [len(recorder.shortcuts) for recorder in recorders] == launches


@on_a_gpu
@needs_gpu
def test_streams_do_not_disturb_each_other():
    problems = [make_qkv((2, 4, 4, 500, 500, 64, 64), torch.bfloat16, seed) for seed in (0, 1)]
    expected = [attention(**tensors, causal=True) for tensors in problems]
    streams = [torch.cuda.Stream() for _ in problems]
    torch.cuda.synchronize()
    results = []
    for _ in range(5):
        for stream, tensors in zip(streams, problems, strict=True):
            with torch.cuda.stream(stream):
                results.append(attention(**tensors, causal=True))
    torch.cuda.synchronize()
    for at, result in enumerate(results):
        assert torch.equal(result, expected[at % 2])


@on_a_gpu
@needs_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU here, or none")
def test_device_of_the_tensors_is_used():
    tensors = make_qkv(dtype=torch.bfloat16)
    elsewhere = {name: t.to("cuda:1") for name, t in tensors.items()}
    here, there = evaluate(attention, **tensors), evaluate(attention, **elsewhere)
    for name, value in there.items():
        assert value.device == torch.device("cuda:1")
        assert torch.equal(value.cpu(), here[name].cpu())


@on_a_gpu
@needs_gpu
@pytest.mark.parametrize("axis", ["batch", "head", "row"])
def test_offsets_beyond_int32_are_reached_in_every_axis(axis):
    free, _ = torch.cuda.mem_get_info()
    far = 2**30 + 64  # twice this is past 2**31 elements, and so is the third of anything
    if free < 3 * 2**31 * 2:
        pytest.skip(f"needs 12 GiB of GPU memory, {free / 2**30:.0f} are free")
    dense = make_qkv((3, 3, 3, 3, 3, 64, 64), torch.bfloat16)
    pool = torch.zeros(2 * far + 2**20, dtype=torch.bfloat16, device="cuda")
    strides = {"batch": (far, 4096, 64, 1), "head": (4096, far, 64, 1), "row": (4096, 512, far, 1)}
    spread = {
        name: pool.as_strided(t.shape, strides[axis], 2**16 * place).copy_(t)
        for place, (name, t) in enumerate(dense.items())
    }
    call = partial(attention, causal=True, impl="triton")
    assert_same(evaluate(call, **spread), evaluate(call, **dense), tolerance=2.0**-7)


@on_a_gpu
@needs_gpu
def test_output_beyond_int32_is_written():
    L, D = 2**18, 64
    H = 2**31 // (L * D) + 1  # heads whose output starts past 2**31 elements
    free, _ = torch.cuda.mem_get_info()
    if free < 12 * 2**30:
        pytest.skip(f"needs 12 GiB of GPU memory, {free / 2**30:.0f} are free")
    q = torch.randn(1, 1, L, D, device="cuda", dtype=torch.bfloat16).expand(1, H, L, D)
    k, v = torch.randn(2, 1, 1, 64, D, device="cuda", dtype=torch.bfloat16)
    o = attention(q, k, v)
    rows = slice(L - 3, L)
    exact = attention(q[:, -1:, rows].double(), k.double(), v.double(), impl="reference")
    plain = attention(q[:, -1:, rows], k, v, impl="reference")
    assert_within_budget("o", o[:, -1:, rows], exact, plain)
    assert o.numel() > 2**31
    assert torch.equal(o[:, 0], o[:, -1])


@on_a_gpu
@needs_gpu
def test_compiled_step_takes_any_batch_size_in_one_graph():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    def step(q, k, v):
        return attention(q, k, v, causal=True).square().mean()

    compiled = torch.compile(step, fullgraph=True, dynamic=True)
    for size in (3, 5, 7):  # no other size among them: equal sizes share a symbol
        tensors = make_qkv((size, 4, 2, 60, 60, 32, 32), torch.bfloat16)
        got, expected = (training_results(f, tensors) for f in (compiled, step))
        torch.testing.assert_close(got, expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def training_results(step, tensors):
    leaves = [t.detach().requires_grad_() for t in tensors.values()]
    loss = step(*leaves)
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


@on_a_gpu
@needs_gpu
def test_training_keeps_no_more_than_inputs_and_output():
    tensors = make_qkv((2, 8, 8, 2048, 2048, 64, 64), torch.bfloat16)
    leaves = [t.requires_grad_() for t in tensors.values()]
    attention(*leaves)
    torch.cuda.synchronize()
    before = requested_memory()
    o = attention(*leaves)
    assert requested_memory() - before == o.numel() * o.element_size()


def requested_memory():
    """Bytes in use on the GPU, without what the allocator adds where it does not split a block."""
    return torch.cuda.memory_stats()["requested_bytes.all.current"]


@on_a_gpu
@needs_gpu
def test_remembered_launches_keep_no_tensor_alive():
    attention(**make_qkv((1, 2, 2, 300, 300, 64, 64), torch.bfloat16))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for length in (301, 302, 303):
        attention(**make_qkv((1, 2, 2, length, length, 64, 64), torch.bfloat16))
    assert torch.cuda.memory_allocated() == before
