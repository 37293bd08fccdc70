"""A second call like the first is a replay: what is remembered of every route, and what not."""

import random
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from implementations import HAS_TRITON, TRITON, device_of, needs_gpu
from numerics import assert_within_budget, make_qkv
from results import assert_same, evaluate

from flashpoint import HeadNorm, attention, attention_qkvpacked, attention_varlen
from flashpoint.lab.selfcheck.judge import Sums

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

from flashpoint.ops.gpu import replay

SHAPE = (2, 3, 3, 17, 17, 32, 32)
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
on_triton = pytest.mark.parametrize("impl", TRITON)


class Repeating(replay.Recorder):
    """Records in the interpreter too, and replays there by the kernel itself."""

    def __init__(self, like):
        super().__init__(like)
        self.is_repeatable = True

    def launch(self, kernel, num_programs, arguments, roles=replay.NO_ROLES):
        super().launch(kernel, num_programs, arguments, roles)
        if self.is_repeatable:
            last = self.launches[-1]
            self.launches[-1] = last._replace(compiled=last.compiled or kernel)


def call_plain(q, k, v, **options):
    return attention(q, k, v, **options)


def call_packed(q, k, v, q_gain=None, k_gain=None, **options):
    qkv = torch.stack([x.transpose(1, 2) for x in (q, k, v)], 2)
    norms = {} if q_gain is None else {"q_norm": HeadNorm("layer", q_gain)}
    norms |= {} if k_gain is None else {"k_norm": HeadNorm("rms", k_gain)}
    return attention_qkvpacked(qkv, **norms, **options).transpose(1, 2)


CALLS = {
    "plain": (call_plain, ()),
    "packed": (call_packed, ()),
    "normalized": (call_packed, ("q_gain", "k_gain")),
    "queries only": (call_packed, ("q_gain",)),
    "keys only": (call_packed, ("k_gain",)),
}
ROUTES = {
    "one tile": {},
    "general": {"causal": True},
    "lengths": {"key_lengths": [9, 17]},
}


def check_replays(call, gains, shape, dtype, monkeypatch):
    """Calls on new tensors, replayed from the first one's recordings, are as fresh ones."""
    monkeypatch.setattr(replay, "Recorder", Repeating)
    monkeypatch.setattr(replay, "_recordings", {})
    for seed in (1, 2, 3):
        tensors = make_qkv(shape, dtype, seed)
        tensors |= {n: tensors["q"][0, 0, i].clone() for i, n in enumerate(gains)}
        got = evaluate(call, **tensors)
        assert len(replay._recordings) == 2
        fresh = dict(replay._recordings)
        replay._recordings.clear()
        assert_same(got, evaluate(call, **tensors))
        replay._recordings.update(fresh)


@pytest.mark.parametrize("options", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize(("call", "gains"), CALLS.values(), ids=CALLS)
@on_triton
@pytest.mark.pairwise
@pytest.mark.long_interpreted
def test_second_call_follows_new_values(impl, call, gains, options, monkeypatch):
    if "key_lengths" in options:
        options = {"key_lengths": torch.tensor(options["key_lengths"], device=device_of(impl))}
    call = partial(call, impl=impl, **options)
    check_replays(call, gains, SHAPE, torch.float16, monkeypatch)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("L", [65, 197, 300])
@pytest.mark.parametrize(("call", "gains"), CALLS.values(), ids=CALLS)
def test_second_call_follows_new_values_on_a_gpu(call, gains, L, causal, monkeypatch):
    """By the kernels that tokens of vision take there, those for Hopper among them."""
    call = partial(call, impl="triton", causal=causal)
    check_replays(call, gains, (2, 3, 3, L, L, 64, 64), torch.bfloat16, monkeypatch)


def record(monkeypatch, call, tensors):
    """What forward and backward leave to be replayed."""
    monkeypatch.setattr(replay, "Recorder", Repeating)
    monkeypatch.setattr(replay, "_recordings", {})
    evaluate(call, **tensors)
    return list(replay._recordings.values())


@pytest.mark.parametrize("alpha", [0.5, 0.7, 1.0])
@on_triton
def test_recordings_know_no_lengths(impl, alpha, monkeypatch):
    tensors = make_qkv((2, 2, 1, 40, 70, 32, 32))
    call = partial(attention, causal=True, alpha=alpha, impl=impl)
    recordings = []
    for numbers in ([70, 20], [3, 0]):
        lengths = torch.tensor(numbers, device=device_of(impl))
        recordings.append(record(monkeypatch, partial(call, key_lengths=lengths), tensors))
    assert [len(recorder.launches) for recorder in recordings[0]] == [1, 2]
    for first, second in zip(*recordings, strict=True):
        known = {"q", "k", "v", "do", "lengths"} | set(first.buffers)
        for a, b in zip(first.launches, second.launches, strict=True):
            assert (a.grid, a.arguments, a.tensors) == (b.grid, b.arguments, b.tensors)
            assert {name for _, name in a.tensors} <= known


@pytest.mark.parametrize("length", ["keys", "visible"])
@on_triton
def test_recordings_know_no_ends_of_sequences(impl, length, monkeypatch):
    tensors = {name: t[0].transpose(0, 1) for name, t in make_qkv((1, 2, 1, 9, 9, 8, 8)).items()}
    launches = []
    for ends in ([0, 4, 9], [0, 9, 9]):
        cu = torch.tensor(ends, dtype=torch.int32, device=device_of(impl))
        call = partial(
            attention_varlen,
            cu_seqlens_q=cu,
            cu_seqlens_k=cu,
            max_seqlen_q=9,
            max_seqlen_k=9,
            alpha=0.5,
            length=length,
            impl=impl,
        )
        recorded = record(monkeypatch, call, tensors)
        launches.append([launch for recorder in recorded for launch in recorder.launches])
    assert len(launches[0]) == 3
    for a, b in zip(*launches, strict=True):
        assert (a.grid, a.arguments, a.tensors) == (b.grid, b.arguments, b.tensors)


@on_triton
def test_a_mask_is_counted_anew_in_every_replay(impl, monkeypatch):
    mask = torch.arange(70, device=device_of(impl)) % 3 > 0
    call = partial(attention, mask=mask, alpha=0.5, impl=impl)
    launches = [len(recorded.launches) for recorded in record(monkeypatch, call, make_qkv())]
    assert launches == [2, 3]  # each reads the mask first


@every_dtype
@on_triton
@pytest.mark.long_interpreted
def test_lengths_and_masks_of_a_second_call_are_its_own(impl, dtype):
    lengths = torch.tensor([70, 20], device=device_of(impl))
    mask = torch.rand(70, device=device_of(impl)) > 0.3
    masked = {"mask": mask, "key_lengths": lengths}
    for options in ({}, {"alpha": 0.5, "key_lengths": lengths}, masked):
        call = partial(attention, impl=impl, causal=True, **options)
        plain = partial(call, impl="reference")
        for seed in (1, 2, 3):
            tensors = make_qkv((2, 2, 1, 40, 70, 32, 32), dtype, seed)
            wide = {name: t.double() for name, t in tensors.items()}
            got, near, exact = (
                evaluate(f, **t) for f, t in ((call, tensors), (plain, tensors), (plain, wide))
            )
            for name, value in got.items():
                assert_within_budget(name, value, exact[name], near[name], Sums(group=2))
            if options:
                mask.copy_(mask.roll(1))
                lengths.copy_(lengths.flip(0))


@on_triton
def test_calls_that_differ_in_a_number_do_not_share_a_result(impl):
    tensors = make_qkv((1, 2, 1, 20, 33, 16, 16))
    numbers = {
        "scale": (0.1, 0.3),
        "alpha": (0.0, 0.5, 1.0),
        "length": (7, 9, "keys", "visible"),
        "bias": (0.1, 0.2),
        "window": ((1, 2), (2, 2), (1, None), (None, None)),
    }
    for name, values in numbers.items():
        for value in values:
            options = {"activation": "silu", "causal": name == "length", name: value}
            got = attention(**tensors, **options, impl=impl)
            assert_same({"o": got}, {"o": attention(**tensors, **options, impl="reference")})


def in_layout(x, layout):
    """The same values in other strides, at another alignment, or with repeated rows."""
    if layout == "heads last":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "every second":
        return torch.stack([x, -x], 4)[..., 0]
    if layout == "rows padded":
        return torch.cat([x, x], 3)[..., : x.shape[3]]
    if layout == "off by one":
        wide = x.new_empty(x.numel() + 1)[1:].view(x.shape)
        return wide.copy_(x)
    if layout == "repeated":
        return x[:1].expand_as(x)
    if layout == "negated":
        return torch._neg_view(-x)
    return x.contiguous()


LAYOUTS = (
    *("dense", "heads last", "every second", "rows padded", "off by one", "repeated"),
    "negated",  # which kernels read from a copy
)


@pytest.mark.parametrize("seed", range(3))
@on_triton
@pytest.mark.long_interpreted
def test_layouts_of_one_shape_share_no_recording(impl, seed, monkeypatch):
    """Recordings hold strides: calls that differ in these alone must not find each other's."""
    monkeypatch.setattr(replay, "Recorder", Repeating)
    monkeypatch.setattr(replay, "_recordings", {})
    draw = random.Random(seed)
    chosen = [("dense", "dense", "dense")]
    chosen += [tuple(draw.choice(LAYOUTS) for _ in "qkv") for _ in range(6)]
    call = partial(attention, impl=impl, window=(5, 2))
    for turn, layouts in enumerate(chosen):
        tensors = make_qkv((2, 2, 1, 20, 23, 16, 16), torch.float32, turn)
        pairs = zip(tensors.items(), layouts, strict=True)
        moved = {name: in_layout(x, layout) for (name, x), layout in pairs}
        expected = evaluate(partial(call, impl="reference"), **moved)
        for _ in range(2):  # recorded and replayed
            assert_same(evaluate(call, **moved), expected)
    assert len(replay._recordings) > 2


@on_triton
def test_a_gradient_that_kernels_cannot_read_is_copied_for_replays_too(impl, monkeypatch):
    """That of a sum is one number, repeated; the next one may be negated, or lie in memory."""
    monkeypatch.setattr(replay, "Recorder", Repeating)
    monkeypatch.setattr(replay, "_recordings", {})
    number = torch.ones((), device=device_of(impl))
    for turn in range(3):
        tensors = make_qkv((2, 2, 1, 20, 23, 16, 16), torch.float32, turn)
        for lay in (
            number.expand_as,
            lambda o: torch.exp(number).expand_as(o),
            lambda o: torch._neg_view(torch.cos(o)),
            torch.sin,
        ):
            grads = []
            for chosen in (impl, "reference"):
                leaves = [x.detach().requires_grad_() for x in tensors.values()]
                o = attention(*leaves, impl=chosen)
                grads.append(torch.autograd.grad(o, leaves, lay(o.detach())))
            for got, expected in zip(*grads, strict=True):
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert sum(recorder.prepares for recorder in replay._recordings.values()) == 2


class Looking(replay.Recorder):
    """Launches nothing, but looks at every tensor of a launch: is it what its role leads to?"""

    def __init__(self, inputs):
        super().__init__(inputs["qkv"])
        self.tensors = {name: x for name, x in inputs.items() if x is not None}
        self.kernels = []

    def empty(self, name, shape, dtype):
        self.tensors[name] = super().empty(name, shape, dtype)
        return self.tensors[name]

    def launch(self, kernel, num_programs, arguments, roles=replay.NO_ROLES):
        known = dict(self.tensors)
        for whole, parts in replay.PARTS_OF.items():
            if whole in known:
                known |= zip(parts, known[whole].unbind(2), strict=True)
        for name in kernel.arg_names:
            tensor = getattr(arguments[name], "base", arguments[name])
            if isinstance(tensor, torch.Tensor):
                named = known[roles.get(name, name)]
                assert named.data_ptr() == tensor.data_ptr(), (kernel, name)
        self.kernels.append(kernel)


@pytest.mark.parametrize("kinds", [("layer", "rms"), ("none", "layer"), ("none", "none")], ids=str)
@pytest.mark.parametrize(
    ("L", "D", "backward_launches"), [(200, 64, 1), (300, 48, 1), (1100, 64, 2)], ids=str
)
def test_roles_in_hopper_launches_lead_to_tensors(kinds, L, D, backward_launches, monkeypatch):
    """Rows and columns are two descriptions of a tensor there, and q may be q-hat."""
    from flashpoint.ops.gpu import dispatch, packed
    from flashpoint.ops.gpu.hopper.backward import kernel as hopper_backward
    from flashpoint.ops.spec import NormTerms, Terms

    recorders = []

    def first_call_only(name, inputs, options, outputs, first_call):
        recorders.append(Looking(inputs))
        return first_call(recorders[-1], inputs)

    processors = SimpleNamespace(multi_processor_count=132, L2_cache_size=60 * 2**20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: processors)
    monkeypatch.setattr(dispatch, "serves", lambda _: True)
    monkeypatch.setattr(packed, "run_recorded", first_call_only)
    qkv = torch.zeros(2, L, 3, 2, D, dtype=torch.bfloat16)
    gains = [None if kind == "none" else torch.ones(D) for kind in kinds]
    norm = NormTerms(kinds[0], 1e-6, kinds[1], 1e-6)
    rest = (*gains, None, None, None, norm, Terms())
    (o,) = packed.launch_packed_forward(False, qkv, *rest)
    packed.launch_packed_backward((), o, qkv, *rest, False, False)
    kernel = hopper_backward.hopper_backward_kernel
    assert recorders[1].kernels.count(kernel) == backward_launches


def test_tensors_on_other_devices_share_no_recording():
    """A launcher that gets numbers cannot tell the host's from the GPU's."""

    def signature(device):
        x = torch.zeros(4, 4)
        x.get_device = lambda: device
        return replay._identify({"q": x})[0]

    assert signature(0) == signature(0) != signature(-1)


def test_what_tells_recordings_apart_is_all_that_a_launch_depends_on():
    """Alignment too: a kernel compiled for 16 bytes would read others wrongly, or fault."""
    room = torch.zeros(64, dtype=torch.int16)

    def signature(start=0, dtype=torch.bfloat16, shape=(4, 4), stride=(4, 1)):
        x = room[start:].view(dtype).as_strided(shape, stride)
        return replay._identify({"q": x})[0]

    same = signature()
    assert same == signature(start=8)  # 16 bytes on
    assert same != signature(start=1)
    assert same != signature(dtype=torch.float16)
    assert same != signature(shape=(2, 8))
    assert same != signature(stride=(8, 1))
    assert replay._identify({"q": None})[0] != same
