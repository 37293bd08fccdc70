"""Estimates of set-ups whose share of a GPU's peak others have published.

Attention takes the rate of FlashAttention alone that ring-flash-attention gives for each GPU.
Products and memory reach the share of their nominal speed that they reach on the H200. Nothing
is fitted to what was published.
"""

from collections.abc import Iterator
from typing import NamedTuple

from docs_numbers.stored import Stored
from docs_numbers.tables import numbers, table
from flashpoint.lab.bench.cases import Case, Mode, Shape
from flashpoint.lab.bench.entry import Limits
from flashpoint.lab.bench.result import OURS, Measurement, Row
from flashpoint.lab.scaling.estimate import Choice, Setting, attention_part, estimate
from flashpoint.lab.scaling.lengths import timed_once
from flashpoint.lab.scaling.links import Links
from flashpoint.lab.scaling.load import Load
from flashpoint.lab.scaling.rates import DTYPE, Rates, stored_rates


class Gpu(NamedTuple):
    """Nominal speeds in bf16, one way, and FlashAttention's calls a second, forward and both.

    Calls are of 8,192 tokens on one GPU, causal, with Llama 3.1 8B's heads.
    """

    name: str
    flops_per_s: float
    memory_bytes_per_s: float
    node_bytes_per_s: float
    calls: tuple[float, float]


A100_CALLS = (373.4, 94.7)
H200 = Gpu("H200", 989e12, 4.8e12, 450e9, (0.0, 0.0))
H800 = Gpu("H800", 989e12, 3.35e12, 200e9, (591.5, 154.7))
A100 = Gpu("A100", 312e12, 2.0e12, 300e9, A100_CALLS)
A100_40GB = Gpu("A100 40 GB", 312e12, 1.555e12, 300e9, A100_CALLS)
A800 = Gpu("A800", 312e12, 2.0e12, 200e9, A100_CALLS)
NETWORK = 25e9
"""Of a GPU: 200 Gbit/s."""
MEMORY = 80e9
"""Of a GPU; it changes no time here."""
RINGS = ((H800, 63.0, 17.4), (A100, 38.2, 10.6))
"""ring-flash-attention's balanced ring over 8 GPUs with 8,192 tokens each: calls a second."""
RING_TOKENS = 8 * 8192
USP, USP_TOKENS = 0.47, 208 * 1024
ULYSSES, ULYSSES_TOKENS_A_STEP = 0.54, 64 * 32768


class Comparison(NamedTuple):
    """Shares of a GPU's peak."""

    what: str
    estimated: float
    published: float

    @property
    def ratio(self) -> float:
        """Published over estimated."""
        return self.published / self.estimated


def comparisons(stored: Stored) -> list[Comparison]:
    """All set-ups."""
    own = stored_rates(stored.root)
    return [*_ring_flash_attention(own), *_deepspeed_ulysses(own), *_usp(own)]


def _ring_flash_attention(own: Rates) -> Iterator[Comparison]:
    for gpu, forwards, both in RINGS:
        setting, choice = ring_of_8(gpu, own)
        forward, backward = attention_part(setting, choice)
        flops = setting.load.attention_flops(RING_TOKENS) / choice.sequence / gpu.flops_per_s
        name = f"ring-flash-attention, 8 {gpu.name}"
        yield Comparison(f"{name}, forward", flops / forward.step, flops * forwards)
        step = forward.step + backward.step
        yield Comparison(f"{name}, with backward", 3.5 * flops / step, 3.5 * flops * both)


def ring_of_8(gpu: Gpu, own: Rates) -> tuple[Setting, Choice]:
    """Attention with Llama 3.1 8B's heads over 8 GPUs."""
    setting = _setting(LLAMA, gpu, own, tokens=RING_TOKENS, batch=1, num_gpus=8)
    return setting, Choice(data=1, sequence=8, strategy="ring", recomputes=False)


def _deepspeed_ulysses(own: Rates) -> Iterator[Comparison]:
    """GPT of 30 B on 64 GPUs, a sequence on 8 of them; blocks that run again count."""
    for tokens in (8192, 262144):
        batch = ULYSSES_TOKENS_A_STEP // tokens
        setting = _setting(GPT, A100_40GB, own, tokens=tokens, batch=batch, num_gpus=64)
        choice = Choice(data=8, sequence=8, strategy="ulysses", recomputes=True)
        share = _share_of_peak(setting, choice, A100_40GB, forwards=2)
        name = f"DeepSpeed-Ulysses, 30 B on 64 A100, {tokens // 1024}k tokens"
        yield Comparison(name, share, ULYSSES)


def _usp(own: Rates) -> Iterator[Comparison]:
    """Llama 3 8B on two nodes, one sequence; blocks that run again do not count."""
    setting = _setting(LLAMA, A800, own, tokens=USP_TOKENS, batch=1, num_gpus=16)
    for recomputes in (False, True):
        choice = Choice(data=1, sequence=16, strategy="ring", recomputes=recomputes)
        how = "blocks run again" if recomputes else "activations kept"
        share = _share_of_peak(setting, choice, A800, forwards=1)
        yield Comparison(f"USP, Llama 3 8B on 16 A800, 208k tokens, {how}", share, USP)


def _share_of_peak(setting: Setting, choice: Choice, gpu: Gpu, forwards: int) -> float:
    """Of a step; backward is two forwards of products and 2.5 of attention."""
    load, tokens = setting.load, setting.tokens
    products = (forwards + 2) * load.matrix_flops(tokens)
    attention = (forwards + 2.5) * load.depth * load.attention_flops(tokens)
    flops = setting.batch * (products + attention) / setting.num_gpus
    return flops / estimate(setting, choice).seconds.step / gpu.flops_per_s


def _setting(
    load: Load, gpu: Gpu, own: Rates, *, tokens: int, batch: int, num_gpus: int
) -> Setting:
    inside = gpu.node_bytes_per_s
    return Setting(
        load=load,
        tokens=tokens,
        batch=batch,
        num_gpus=num_gpus,
        memory_bytes=MEMORY,
        rates=_rates(gpu, own),
        links=Links(node_bytes_per_s=inside, network_bytes_per_s=NETWORK, gpus_per_node=8),
    )


def _rates(gpu: Gpu, own: Rates) -> Rates:
    forward, both = (1 / calls for calls in gpu.calls)
    return Rates(
        device=gpu.name,
        sources=("ring-flash-attention's README",),
        rows=(_row("forward", forward), _row("backward", both - forward)),
        matrix_flops_per_s=own.matrix_flops_per_s * gpu.flops_per_s / H200.flops_per_s,
        memory_bytes_per_s=(
            own.memory_bytes_per_s * gpu.memory_bytes_per_s / H200.memory_bytes_per_s
        ),
    )


def _row(mode: Mode, seconds: float) -> Row:
    shape = Shape(1, LLAMA.num_heads, 8192, LLAMA.head_dim, LLAMA.num_kv_heads)
    return Row(
        case=Case(shape=shape, dtype=DTYPE, mode=mode, causal=True, device="cuda"),
        limits=Limits(),
        error_bound=0.0,
        is_overhead=False,
        measurements=(Measurement(provider=OURS, timing=timed_once(seconds)),),
    )


def _decoder(
    name: str, *, width: int, depth: int, heads: tuple[int, int], mlp: tuple[int, int], vocab: int
) -> Load:
    """A causal language model; ``mlp`` is its width and how many matrices it has."""
    kv_width = width // heads[0] * heads[1]
    of_layers = depth * width * (2 * width + 2 * kv_width + mlp[0] * mlp[1])
    return Load(
        name=name,
        width=width,
        depth=depth,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        mlp_dim=mlp[0],
        has_qk_norm=False,
        is_causal=True,
        num_parameters=of_layers + 2 * vocab * width,
        token_flops=2.0 * (of_layers + vocab * width),
        sample_flops=0.0,
        input_bytes=8,
    )


LLAMA = _decoder("Llama 3 8B", width=4096, depth=32, heads=(32, 8), mlp=(14336, 3), vocab=128256)
GPT = _decoder("OPT-30B", width=7168, depth=48, heads=(56, 56), mlp=(28672, 2), vocab=50272)


@numbers("plan-published")
def _published(stored: Stored) -> str:
    rows = [
        [one.what, f"{one.estimated:.0%}", f"{one.published:.0%}", f"{one.ratio:.2f}"]
        for one in comparisons(stored)
    ]
    return table(["share of the peak", "estimate", "published", "published / estimate"], rows)
