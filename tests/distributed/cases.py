"""Random calls of sequence-parallel attention: drawn by a seed, run on ranks, and on one."""

import random
from dataclasses import dataclass, field

import torch

from flashpoint.distributed import sequence_parallel
from flashpoint.distributed.layout import Shards
from flashpoint.ops.api import attention

ACTIVATIONS = (
    "relu",
    "relu2",
    "relu3",
    "relu4",
    "relu6",
    "gelu",
    "silu",
    "softplus",
    "sigmoid",
    "exp",
    "identity",
)
NONNEGATIVE = ("relu", "relu2", "relu4", "relu6", "softplus", "sigmoid", "exp")
SMOOTH = ("softplus", "sigmoid", "exp")
DTYPES = {"float64": 0.5, "float32": 0.2, "bfloat16": 0.2, "float16": 0.1}


@dataclass(frozen=True)
class Case:
    """A call over the whole sequence, and how it is cut."""

    seed: int
    sizes: tuple  # B, Hq, Hkv, D, Dv
    queries: tuple  # by rank, how many it holds
    keys: tuple
    layout: str
    dtype: torch.dtype
    options: dict = field(default_factory=dict)
    shift: float = 0.0  # of values: up in the first half of the keys, down in the second

    @property
    def shards(self):
        return {
            "q": Shards.of(self.queries, self.layout, "queries"),
            "k": Shards.of(self.keys, self.layout, "keys"),
        }

    def inputs(self):
        """q, k, v and the gradients of o and of sums, in fp64 with values that bf16 holds."""
        B, Hq, Hkv, D, Dv = self.sizes
        Lq, Lk = sum(self.queries), sum(self.keys)
        planes = (2,) if self.options.get("return_sums") == "logs" else ()
        sizes = {
            "q": (B, Hq, Lq, D),
            "k": (B, Hkv, Lk, D),
            "v": (B, Hkv, Lk, Dv),
            "do": (B, Hq, Lq, Dv),
            "dsums": (*planes, B, Hq, Lq),
        }
        generator = torch.Generator().manual_seed(self.seed)
        made = {name: torch.randn(size, generator=generator) for name, size in sizes.items()}
        if self.shift:
            half = torch.where(torch.arange(Lk) < Lk // 2, self.shift, -self.shift)
            made["v"] = 0.05 * made["v"] + half.unsqueeze(-1)
        return {name: x.bfloat16().double() for name, x in made.items()}


def draw_case(seed, num_ranks):
    """Any call that is served: lengths, heads, layouts, options and dtypes."""
    rng = random.Random(seed)
    layout = rng.choice(["contiguous", "contiguous", "zigzag"])
    heads = rng.choice([1, 2, num_ranks])
    sizes = (
        rng.choice([1, 2]),
        heads * rng.choice([1, 2]),
        heads,
        rng.choice([4, 8]),
        rng.choice([4, 6]),
    )
    keys = _draw_lengths(rng, num_ranks, layout)
    queries = keys if rng.random() < 0.5 else _draw_lengths(rng, num_ranks, layout)
    names = list(DTYPES)
    dtype = getattr(torch, rng.choices(names, [DTYPES[x] for x in names])[0])
    options = {
        "causal": rng.random() < 0.5,
        "length": rng.choice(["visible", "visible", "keys", 7.0]),
        "bias": rng.choice([None, None, -0.3]),
        "scale": rng.choice([None, 0.4]),
    }
    if rng.random() < 0.4:
        options["window"] = tuple(rng.choice([None, 0, 1, 5, 20]) for _ in range(2))
    if rng.random() < 0.3:
        ends = [rng.randint(0, sum(keys)) for _ in range(sizes[0])]
        options["key_lengths"] = torch.tensor(ends)
    options |= _draw_division(rng)
    options["impl"] = rng.choice(["auto", "auto", "auto", "reference"])
    return Case(seed, sizes, queries, keys, layout, dtype, options)


def _draw_division(rng):
    options = {"return_sums": rng.choice([False, False, True])}
    if rng.random() < 0.4:
        options |= {"normalize": "sum", "floor": rng.choice([1e-3, 0.5])}
        options["activation"] = rng.choice(NONNEGATIVE)
        options["return_sums"] = rng.choice([False, True, "logs"])
        if options["return_sums"] == "logs":  # log w is steep where weights end at 0
            options["activation"] = rng.choice(SMOOTH)
    else:
        options |= {"alpha": rng.choice([1.0, 0.5, 0.0, 1.7])}
        options["activation"] = rng.choice(ACTIVATIONS)
    return options


def _draw_lengths(rng, num_ranks, layout):
    if layout == "zigzag" or rng.random() < 0.5:
        total = rng.choice([1, 5, 16, 24, 37])
        return tuple(Shards.split(total, num_ranks, layout).lengths)
    drawn = [rng.choice([0, 1, 3, 7, 11]) for _ in range(num_ranks - 1)]
    return (*drawn, rng.choice([1, 8]))


def run_sharded(case, strategy, group, **made):
    """This rank's results by name, and the elements it sent forward and backward."""
    attend = sequence_parallel(group, strategy, layout=case.layout, **made)
    rank, shards = attend.transport.rank, case.shards
    whole = case.inputs()
    leaves = {
        name: shards["q" if name == "q" else "k"].take(whole[name], rank).to(case.dtype)
        for name in "qkv"
    }
    leaves = {name: x.clone().requires_grad_() for name, x in leaves.items()}
    found = attend(**leaves, **case.options)
    forward = attend.transport.sent
    do = shards["q"].take(whole["do"], rank)
    dsums = shards["q"].take(whole["dsums"], rank, whole["dsums"].dim() - 1)
    results = differentiate(found, leaves, do, dsums, case.options.get("return_sums"))
    return results, (forward, attend.transport.sent - forward)


def differentiate(found, leaves, do, dsums, return_sums):
    """Results and gradients by name; sums of both kinds as one."""
    o, *sums = found if return_sums else (found,)
    pairs = [(o, do.to(o.dtype))]
    if sums:
        z = torch.stack(sums) if return_sums == "logs" else sums[0]
        pairs.append((z, dsums.to(z.dtype)))
    grads = torch.autograd.grad(
        [y for y, _ in pairs], list(leaves.values()), [dy for _, dy in pairs]
    )
    named = {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}
    return {"o": o.detach(), **({"sums": pairs[1][0].detach()} if sums else {}), **named}


def run_whole(case, dtype, impl="reference"):
    """The same by one process."""
    whole = case.inputs()
    leaves = {name: whole[name].to(dtype).requires_grad_() for name in "qkv"}
    found = attention(**leaves, **(case.options | {"impl": impl}))
    return differentiate(
        found, leaves, whole["do"], whole["dsums"], case.options.get("return_sums")
    )


def run_parts(case, exact):
    """What a division by sums takes off the gradients, of which little may be left.

    As ``selfcheck.evaluate`` has it: the gradient of a weight is f_i (do_i . v_j - do_i . o_i).
    """
    if case.options.get("normalize") != "sum":
        return {}
    whole = case.inputs()
    options = case.options | {"return_sums": True, "impl": "reference"}
    ones = torch.ones_like(whole["v"])
    shares, sums = attention(whole["q"], whole["k"], ones, **options)
    given = (whole["do"] * exact["o"]).sum(-1) * shares[..., 0] / sums.masked_fill(sums == 0, 1)
    leaves = {name: whole[name].requires_grad_() for name in "qkv"}
    found = attention(**leaves, **options)
    parts = differentiate(found, leaves, torch.zeros_like(whole["do"]), given, True)
    return {name: x for name, x in parts.items() if name in ("dq", "dk")}


def join(case, results):
    """Results of the whole sequence from those of all ranks."""
    shards = case.shards
    joined = {}
    for name in results[0]:
        whose = shards["k" if name in ("dk", "dv") else "q"]
        dim = results[0][name].dim() - 1 if name == "sums" else 2
        joined[name] = whose.join([of_rank[name] for of_rank in results], dim)
    return joined


def serves(case, strategy, num_ranks):
    """Whether a strategy can do it."""
    return strategy != "ulysses" or not (case.sizes[1] % num_ranks or case.sizes[2] % num_ranks)


_groups = {}


def group_of_size(size):
    """A group of so many ranks, this one among them: all, or one half."""
    import torch.distributed as dist

    if size not in _groups:
        world = dist.get_world_size()
        made = [dist.new_group(list(range(i, i + size))) for i in range(0, world, size)]
        _groups[size] = made[dist.get_rank() // size]
    return _groups[size]


def run_cases(cases, size, **made):
    """Of every (case, strategy) this rank's results and the elements it sent."""
    group = group_of_size(size)
    return [run_sharded(case, strategy, group, **made) for case, strategy in cases]
