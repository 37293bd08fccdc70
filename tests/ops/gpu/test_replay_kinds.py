"""Every kind of call, recorded and then replayed on other tensors, gives what the reference gives.

In Triton's interpreter a launch past Triton is a kernel that finds its tensors by the addresses
which a C launcher would get. Those of the calls before are NaN then, and keep their memory. The
kernels for Hopper are not run: replays must hand them the same tensors as first calls.
"""

import itertools
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from implementations import HAS_GPU, HAS_TRITON
from numerics import assert_within_budget
from results import assert_same, evaluate

from flashpoint import HeadNorm, attention, attention_qkvpacked, attention_varlen
from flashpoint.lab.selfcheck.judge import Sums
from flashpoint.ops.spec import NormTerms, Terms

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)
if HAS_GPU:
    pytest.skip("test_replay.py replays by the real launcher here", allow_module_level=True)

from addressed import Addressed, Refusing, without_a_gpu

from flashpoint.ops.gpu import attend, dispatch, packed, replay, sign_budget
from flashpoint.ops.gpu.launcher import Shortcut

HALF = torch.float16


class Kind(NamedTuple):
    """A kind of call.

    Attributes:
        shape: B, Hq, Hkv, Lq, Lk, D, Dv.
        launches: of forward and of backward that are remembered; 0 where the call is not.
        options: sizes are a tensor to be made, with a gradient; "fixed", "bool" and "lengths" are
            tensors that have none.
        form: "dense", "varlen" or "packed".
        norms, gains: of packed calls' q and k.
    """

    shape: tuple[int, ...]
    launches: tuple[int, int]
    options: Mapping[str, Any] = MappingProxyType({})
    form: str = "dense"
    norms: tuple[str | None, str | None] = (None, None)
    gains: str = ""
    dtype: torch.dtype = torch.float32


DENSE, GROUPED = (2, 2, 2, 20, 20, 16, 16), (2, 4, 2, 20, 33, 16, 24)
LONG = (1, 2, 1, 70, 300, 16, 16)  # read by descriptors
KINDS = {
    "dense": Kind(DENSE, (1, 2)),
    "fp16": Kind(GROUPED, (1, 2), dtype=HALF),
    "grouped": Kind(GROUPED, (1, 2), {"activation": "silu"}),
    "causal": Kind(GROUPED, (1, 2), {"causal": True}),
    "window": Kind(GROUPED, (1, 2), {"window": (5, 2), "alpha": 0.5}),
    "lengths": Kind(GROUPED, (1, 2), {"key_lengths": "lengths", "causal": True}),
    "bias": Kind(DENSE, (1, 0), {"bias": (2, 2, 20, 20)}),
    "bias of keys": Kind(GROUPED, (1, 0), {"bias": (1, 4, 1, 33)}),
    "bias without gradient": Kind(GROUPED, (1, 2), {"bias": "fixed"}),
    "float mask": Kind(GROUPED, (1, 0), {"mask": (2, 1, 20, 33)}),
    "bias and mask": Kind(DENSE, (1, 0), {"bias": (1, 2, 20, 20), "mask": (2, 1, 1, 20)}),
    "bool mask": Kind(GROUPED, (2, 3), {"mask": "bool"}),
    "bool mask as words": Kind(LONG, (2, 3), {"mask": "bool"}),
    "bool mask, length keys": Kind(GROUPED, (1, 2), {"mask": "bool", "length": "keys"}),
    "long": Kind(LONG, (1, 2)),
    "whole heads": Kind(DENSE, (1, 1), dtype=HALF),
    "decode": Kind((1, 4, 2, 3, 600, 16, 16), (2, 2)),
    "decode, lengths": Kind((2, 2, 1, 1, 520, 16, 8), (2, 2), {"key_lengths": "lengths"}),
    "decode, bool mask": Kind((1, 2, 2, 2, 512, 16, 16), (3, 3), {"mask": "bool"}),
    "varlen": Kind((3, 2, 1, 20, 24, 16, 8), (1, 2), form="varlen"),
    "varlen, causal": Kind((3, 2, 2, 20, 20, 16, 16), (1, 2), {"causal": True}, "varlen"),
    "varlen, keys": Kind((3, 2, 2, 20, 24, 16, 16), (1, 2), {"length": "keys"}, "varlen"),
    "varlen, bias": Kind((3, 2, 2, 20, 24, 16, 16), (1, 0), {"bias": (1, 2, 20, 24)}, "varlen"),
}
NORMS = {
    "layer-rms": (("layer", "rms"), "qk"),
    "rms-layer": (("rms", "layer"), "q"),
    "rms-rms": (("rms", "rms"), ""),
    "layer-none": (("layer", None), "q"),
    "none-layer": ((None, "layer"), "k"),
    "none-rms": ((None, "rms"), ""),
    "none-none": ((None, None), ""),
}
ROUTES = {
    "tiles": ({}, torch.float32),
    "causal": ({"causal": True}, HALF),
    "lengths": ({"key_lengths": "lengths"}, torch.float32),
    "bias": ({"bias": (2, 2, 20, 20)}, torch.float32),
    "mask": ({"mask": (2, 1, 1, 20)}, torch.float32),
    "whole": ({}, HALF),
}
for norm, route in itertools.product(NORMS, ROUTES):
    if route in ("tiles", "whole") or norm in ("layer-rms", "none-layer"):
        (norms, gains), (options, dtype) = NORMS[norm], ROUTES[route]
        passes = int(norms != (None, None) and route != "whole")
        backward = 1 if route == "whole" else 2 + 2 * passes
        launches = (1 + passes, 0 if route in ("bias", "mask") else backward)
        KINDS[f"packed, {route}, {norm}"] = Kind(
            DENSE, launches, options, "packed", norms, gains, dtype
        )
DIVISIONS = {
    "sums": {"return_sums": True},
    "divided": {"normalize": "sum", "activation": "softplus"},
    "divided, sums": {"normalize": "sum", "return_sums": True, "floor": 0.5},
}
WITH_SUMS = (
    *("grouped", "causal", "fp16", "window", "lengths", "bias", "bool mask", "long"),
    *("whole heads", "decode", "decode, lengths", "varlen", "varlen, keys"),
    *("packed, tiles, none-rms", "packed, causal, layer-rms", "packed, whole, layer-rms"),
)
for name, (word, division) in zip(WITH_SUMS, itertools.cycle(DIVISIONS.items()), strict=False):
    plain = KINDS[name]
    forward, backward = plain.launches
    options = {n: x for n, x in plain.options.items() if n not in ("alpha", "activation")}
    launches = (forward, backward + (backward > 0))  # one more, over rows
    KINDS[f"{name}, {word}"] = plain._replace(launches=launches, options=options | division)
REFUSED = (
    *("dense", "long", "decode", "varlen", "decode, sums", "varlen, divided, sums"),
    *("packed, tiles, layer-rms", "packed, whole, layer-rms", "packed, causal, none-layer"),
)


def make_tensors(kind, seed):
    """What has gradients, and what has none, in new memory."""
    B, Hq, Hkv, Lq, Lk, D, Dv = kind.shape
    generator = torch.Generator().manual_seed(seed)

    def draw(*sizes):
        return torch.randn(sizes, generator=generator).to(kind.dtype)

    sizes = {"q": (B, Hq, Lq, D), "k": (B, Hkv, Lk, D), "v": (B, Hkv, Lk, Dv)}
    fixed = {}
    if kind.form == "packed":
        sizes = {"qkv": (B, Lq, 3, Hq, D)} | {f"{name}_gain": (D,) for name in kind.gains}
    elif kind.form == "varlen":
        rows, columns = B * Lq - 7, B * Lk - 9
        sizes = {"q": (rows, Hq, D), "k": (columns, Hkv, D), "v": (columns, Hkv, Dv)}
        for name, longest, total in (("q", Lq, rows), ("k", Lk, columns)):
            ends = [0, longest - seed, 2 * longest - 3 * seed, total]
            fixed[f"cu_seqlens_{name}"] = torch.tensor(ends, dtype=torch.int32)
            fixed[f"max_seqlen_{name}"] = longest
    makers = {
        "fixed": lambda: draw(B, Hq, Lq, Lk),
        "bool": lambda: draw(B, 1, Lq, Lk) > 0,
        "lengths": lambda: torch.tensor([(7 * seed + 5 * b) % Lk for b in range(B)]),
    }
    for name, value in kind.options.items():
        if name in ("bias", "mask") and isinstance(value, tuple):
            sizes[name] = value
        else:
            fixed[name] = makers[value]() if value in makers else value
    return {name: draw(*size) for name, size in sizes.items()}, fixed


def call_packed(qkv, q_gain=None, k_gain=None, norms=(), **options):
    for name, kind, gain in zip(("q_norm", "k_norm"), norms, (q_gain, k_gain), strict=True):
        options |= {} if kind is None else {name: HeadNorm(kind, gain, 1e-3)}
    return attention_qkvpacked(qkv, **options)


def call_of(kind, fixed, impl):
    if kind.form == "packed":
        return partial(call_packed, norms=kind.norms, impl=impl, **fixed)
    return partial(attention if kind.form == "dense" else attention_varlen, impl=impl, **fixed)


def assert_follows_reference(kind, got, tensors, fixed):
    near = evaluate(call_of(kind, fixed, "reference"), **tensors)
    assert [x.dtype for x in got.values()] == [x.dtype for x in near.values()]
    if kind.dtype == torch.float32:
        assert_same(got, near)
        return
    wide = {name: x.double() for name, x in tensors.items()}
    exact = evaluate(call_of(kind, fixed, "reference"), **wide)
    B, Hq, Hkv, Lq, *_ = kind.shape
    for name, value in got.items():
        sums = Sums(Hq // Hkv, on_top={"dq_gain": B * Hq * Lq, "dk_gain": B * Hq * Lq}, dtype=HALF)
        assert_within_budget(name, value, exact[name], near[name], sums)


@pytest.fixture
def recordings(monkeypatch):
    """Those of one test; no GPU is asked for its stream."""
    return without_a_gpu(monkeypatch)


def count_launches(recordings):
    """Of forward and of backward; 0 for what is not remembered."""
    counts = {"backward" in key[0]: len(made.launches) for key, made in recordings.items()}
    assert len(counts) == len(recordings)
    return counts.get(False, 0), counts.get(True, 0)


CASES = [pytest.param(kind, Addressed, id=name) for name, kind in KINDS.items()]
CASES += [pytest.param(KINDS[name], Refusing, id=f"{name}, refused") for name in REFUSED]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "recorder"), CASES)
def test_replays_follow_the_reference(kind, recorder, recordings, monkeypatch):
    monkeypatch.setattr(replay, "Recorder", recorder)
    kept = []
    for seed in (1, 2):
        tensors, fixed = make_tensors(kind, seed)
        got = evaluate(call_of(kind, fixed, "triton"), **tensors)
        assert count_launches(recordings) == kind.launches
        assert_follows_reference(kind, got, tensors, fixed)
        kept += [*tensors.values(), *fixed.values(), *got.values()]
        for x in filter(torch.is_tensor, kept):  # a replay that looks here will show
            x.fill_(torch.nan if x.is_floating_point() else 0)
    assert Addressed.replays == sum(n > 0 for n in kind.launches)


@pytest.mark.parametrize("name", ["dense", "long", "packed, tiles, layer-rms"])
def test_replays_read_copies_of_what_kernels_cannot_read(name, recordings, monkeypatch):
    """Of tensors with a negative bit, and of a sum's gradient, which is one number."""
    monkeypatch.setattr(replay, "Recorder", Addressed)
    kind = KINDS[name]
    for seed in (1, 2):
        tensors, fixed = make_tensors(kind, seed)
        grads = []
        for impl in ("triton", "reference"):
            leaves = [torch._neg_view(-x).requires_grad_() for x in tensors.values()]
            o = call_of(kind, fixed, impl)(**dict(zip(tensors, leaves, strict=True)))
            grads.append([o.detach(), *torch.autograd.grad(seed * o.sum(), leaves)])
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
    assert Addressed.replays == 2
    assert all(recorder.prepares for recorder in recordings.values())


class Noting(Addressed):
    """Runs nothing, but notes which tensors of its call a launch is told of, and where in them."""

    inputs: ClassVar[dict[str, torch.Tensor]] = {}  # of the first call, as the caller has them
    notes: ClassVar[list[Any]] = []

    def __init__(self, like):
        super().__init__(like)
        self.names = dict(self.inputs)

    def empty(self, role, shape, dtype):
        self.names[role] = super().empty(role, shape, dtype)
        return self.names[role]

    def launch(self, kernel, num_programs, arguments, roles=replay.NO_ROLES):
        given = {name: getattr(arguments[name], "base", arguments[name]) for name in arguments}
        given = {name: x.data_ptr() for name, x in given.items() if torch.is_tensor(x)}
        held = [(name, roles.get(name, name)) for name in given]

        def note(*given):
            places = {name: self.where(address) for name, address in given[-1].items()}
            self.notes.append((kernel.fn.__name__, places))

        note(given)
        self.shortcuts.append(Shortcut(note, [0] * 4, {}, "listed", held, []))

    def where(self, address):
        """The tensor of this call that an address lies in, and how far."""
        for name, x in self.names.items():
            offset = address - x.data_ptr()
            if 0 <= offset < x.nbytes:
                return str(name), offset
        raise AssertionError("the address of no tensor of this call")

    def _replay_past_triton(self, tensors, addresses, device):
        self.names = {name: x for name, x in tensors.items() if x is not None}
        return super()._replay_past_triton(tensors, addresses, device)


class OnHopper(NamedTuple):
    """A call that kernels for Hopper serve; with norms a packed one; or one that is added."""

    shape: tuple[int, ...]
    terms: Terms = Terms()
    norms: tuple[tuple[str | None, str | None], str] | None = None
    adds: bool = False

    def make(self):
        """New tensors, and do."""
        B, Hq, Hkv, Lq, Lk, D, _ = self.shape
        sizes = {"q": (B, Hq, Lq, D), "k": (B, Hkv, Lk, D), "v": (B, Hkv, Lk, D)}
        sizes |= {"do": (B, Hq, Lq, D)}
        if self.norms is not None:
            sizes = {"qkv": (B, Lq, 3, Hq, D), "do": (B, Lq, Hq, D)}
            sizes |= {f"{x}_gain": (D,) for x in self.norms[1]}
        made = {name: torch.zeros(size, dtype=torch.bfloat16) for name, size in sizes.items()}
        return made | ({"totals": torch.zeros(B, Hq, Lq, D)} if self.adds else {})

    def run(self, tensors):
        """Forward and backward."""
        if self.norms is None:
            inputs = (*(tensors[name] for name in "qkv"), None, None, None, self.terms)
            if self.adds:
                attend.launch_forward(False, *inputs, totals=tensors["totals"])
            else:
                attend.launch_forward(False, *inputs)
            attend.launch_backward((), tensors["do"], *inputs, False, False)
        else:
            q_kind, k_kind = (kind or "none" for kind in self.norms[0])
            gains = (tensors.get(name) for name in ("q_gain", "k_gain"))
            norm = NormTerms(q_kind, 1e-6, k_kind, 1e-6)
            inputs = (tensors["qkv"], *gains, None, None, None, norm, self.terms)
            packed.launch_packed_forward(False, *inputs)
            packed.launch_packed_backward((), tensors["do"], *inputs, False, False)


HOPPER = {
    "dense": OnHopper((2, 2, 2, 300, 300, 64, 64)),
    "grouped, causal": OnHopper((2, 4, 2, 300, 400, 64, 64), Terms(right=0)),
    "silu": OnHopper((1, 4, 2, 256, 256, 128, 128), Terms("silu")),
    "signs": OnHopper((2, 4, 2, 256, 384, 128, 128)),
    "192": OnHopper((2, 4, 2, 256, 384, 192, 192)),
    "added": OnHopper((2, 4, 2, 300, 400, 64, 64), adds=True),
    "added from registers": OnHopper((2, 4, 2, 300, 400, 192, 192), adds=True),
    "256, causal": OnHopper((2, 4, 2, 256, 384, 256, 256), Terms(right=0)),
}
for L, D, name in itertools.product((200, 300, 1100), (64, 128), NORMS):
    HOPPER[f"packed, {L}, {D}, {name}"] = OnHopper((1, 2, 2, L, L, D, D), norms=NORMS[name])
for D in (64, 128):  # the operator itself takes gains of norms that are none
    HOPPER[f"packed, unused gain, {D}"] = OnHopper(
        (1, 2, 2, 300, 300, D, D), norms=((None, "rms"), "qk")
    )


@pytest.mark.parametrize("call", HOPPER.values(), ids=HOPPER)
def test_replays_hand_hopper_kernels_the_tensors_of_first_calls(call, recordings, monkeypatch):
    _, Hq, Hkv, Lq, Lk, *_ = call.shape
    words = sign_budget.count_words(Lq, Lk) * (Hq // Hkv)
    monkeypatch.setattr(sign_budget, "MOST_WORDS", words)  # signs of one key head a launch
    processors = SimpleNamespace(multi_processor_count=132, L2_cache_size=60 * 2**20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: processors)
    monkeypatch.setattr(dispatch, "serves", lambda _: True)
    monkeypatch.setattr(replay, "Recorder", Noting)
    kept, notes = [], []
    for _ in range(2):
        tensors = call.make()
        monkeypatch.setattr(Noting, "inputs", tensors)
        monkeypatch.setattr(Noting, "notes", [])
        call.run(tensors)
        kept.append(tensors)  # or the second would lie where the first did
        notes.append(Noting.notes)
    assert Addressed.replays == 2
    assert notes[0] == notes[1]
    kernels = [kernel for kernel, _ in notes[0]]
    assert kernels.count("hopper_forward_kernel") == 1
    assert kernels.count("hopper_backward_kernel") >= 1
