"""Random calls of sequence-parallel attention: drawn by a seed, run on ranks, and on one."""

import random
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from flashpoint.distributed import sequence_parallel
from flashpoint.distributed.layout import Shards
from flashpoint.ops.api import attention, attention_varlen

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
    scores: dict = field(default_factory=dict)  # by name, is it bool, and which axes it has
    ends: tuple = ()  # cu_seqlens of queries and of keys, where tokens are packed documents

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
        for name, (is_bool, axes) in self.scores.items():
            shape = [size if has else 1 for size, has in zip((B, Hq, Lq, Lk), axes, strict=True)]
            drawn = torch.randn(shape, generator=generator)
            made[name] = drawn > -0.5 if is_bool else drawn.abs() if name == "mask" else drawn
        return {
            name: x if x.dtype == torch.bool else x.bfloat16().double() for name, x in made.items()
        }

    def leaves(self, dtype, rank=None):
        """What has gradients, and a bool mask: of the whole sequence, or a rank's part."""
        whole, found = self.inputs(), {}
        for name in ("q", "k", "v", *self.scores):
            x = whole[name]
            if rank is not None and self.has_rows(name):
                x = self.shards["k" if name in "kv" else "q"].take(x, rank)
            is_bool = x.dtype == torch.bool
            found[name] = x if is_bool else x.to(dtype).clone().requires_grad_()
        return found

    def has_rows(self, name):
        """Whether ranks have different parts."""
        return name not in self.scores or self.scores[name][1][2]

    def call(self, leaves, dense, varlen, **changes):
        """A result by either function, as [B, H, L, D] and [B, H, L]."""
        options = self.options | changes
        if not self.ends:
            return dense(**leaves, **options)
        rows = [x[0].transpose(0, 1) for x in leaves.values()]
        longest = [int(x.diff().max()) for x in map(torch.tensor, self.ends)]
        found = varlen(*rows, *map(torch.tensor, self.ends), *longest, **options)
        if not options.get("return_sums"):
            return found.transpose(0, 1).unsqueeze(0)
        o, *sums = found
        return (o.transpose(0, 1).unsqueeze(0), *(x.unsqueeze(0) for x in sums))


def draw_case(seed, num_ranks):
    """Any call that is served: lengths, heads, layouts, options and dtypes.

    Activations and heads take turns: 33 seeds in a row have every pair. Every eighth seed is
    causal self-attention over a longer sequence in zigzag.
    """
    rng, is_long = random.Random(seed), seed % 8 == 0
    layout = "zigzag" if is_long else rng.choice(["contiguous", "contiguous", "zigzag"])
    heads = (1, 2, num_ranks)[seed // len(ACTIVATIONS) % 3]
    sizes = (
        rng.choice([1, 2]),
        heads * rng.choice([1, 2]),
        heads,
        rng.choice([4, 8]),
        rng.choice([4, 6]),
    )
    totals = [32, 37, 48] if is_long else [1, 5, 16, 24, 37]
    keys = _draw_lengths(rng, num_ranks, layout, totals)
    is_same = is_long or rng.random() < 0.5
    queries = keys if is_same else _draw_lengths(rng, num_ranks, layout, totals)
    names = list(DTYPES)
    dtype = getattr(torch, rng.choices(names, [DTYPES[x] for x in names])[0])
    options = {
        "length": rng.choice(["visible", "visible", "keys", 7.0]),
        "bias": rng.choice([None, None, -0.3]),
        "scale": rng.choice([None, 0.4]),
    }
    options |= {"causal": True} if is_long else _draw_visibility(rng, sizes[0], sum(keys))
    options |= _draw_division(rng, ACTIVATIONS[seed % len(ACTIVATIONS)])
    options["impl"] = rng.choice(["auto", "auto", "auto", "reference"])
    return Case(seed, sizes, queries, keys, layout, dtype, options)


def _draw_visibility(rng, num_samples, num_keys):
    options = {"causal": rng.random() < 0.5}
    if rng.random() < 0.4:
        options["window"] = tuple(rng.choice([None, 0, 1, 5, 20]) for _ in range(2))
    if rng.random() < 0.3:
        ends = [rng.randint(0, num_keys) for _ in range(num_samples)]
        options["key_lengths"] = torch.tensor(ends)
    return options


def _draw_division(rng, activation):
    options = {"activation": activation, "return_sums": rng.choice([False, False, True])}
    if activation in NONNEGATIVE and rng.random() < 0.6:
        options |= {"normalize": "sum", "floor": rng.choice([1e-3, 0.5])}
        kinds = [False, True, "logs"] if activation in SMOOTH else [False, True]
        options["return_sums"] = rng.choice(kinds)  # log w is steep where weights end at 0
    else:
        options["alpha"] = rng.choice([1.0, 0.5, 0.0, 1.7])
    return options


def _draw_lengths(rng, num_ranks, layout, totals):
    if layout == "zigzag" or rng.random() < 0.5:
        return tuple(Shards.split(rng.choice(totals), num_ranks, layout).lengths)
    drawn = [rng.choice([0, 1, 3, 7, 11]) for _ in range(num_ranks - 1)]
    return (*drawn, rng.choice([1, 8]))


def draw_documents(seed, num_ranks):
    """Any call over packed documents, cut anywhere and empty at times."""
    case, rng = draw_case(seed, num_ranks), random.Random(seed)
    options = {name: x for name, x in case.options.items() if name != "key_lengths"}
    num = rng.choice([1, 2, 5, 9])

    def ends(total):
        return (0, *sorted(rng.randint(0, total) for _ in range(num - 1)), total)

    cu_keys = ends(sum(case.keys))
    cu_queries = cu_keys if case.queries == case.keys else ends(sum(case.queries))
    sizes = (1, *case.sizes[1:])
    return replace(case, sizes=sizes, options=options, ends=(cu_queries, cu_keys))


def draw_scored(seed, num_ranks):
    """Any call with a bias or a mask, or both, that have any of the axes.

    Gradients of what ranks share are added up by the caller, which 16 bits are too few for.
    """
    case, rng = draw_case(seed, num_ranks), random.Random(seed)
    names = rng.choice([("bias",), ("mask",), ("bias", "mask")])
    scores = {
        name: (name == "mask" and rng.random() < 0.5, tuple(rng.random() < 0.6 for _ in range(4)))
        for name in names
    }
    options = {name: x for name, x in case.options.items() if name != "bias"}
    is_narrow = case.dtype.itemsize < 4 and not all(axes[2] for _, axes in scores.values())
    dtype = torch.float32 if is_narrow else case.dtype
    return replace(case, dtype=dtype, options=options, scores=scores)


def run_sharded(case, strategy, group, **made):
    """This rank's results by name, and the elements it sent forward and backward."""
    attend = sequence_parallel(group, strategy, layout=case.layout, **made)
    rank, shards = attend.transport.rank, case.shards
    whole, leaves = case.inputs(), case.leaves(case.dtype, rank)
    found = case.call(leaves, attend, attend.varlen)
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
    leaves = {name: x for name, x in leaves.items() if x.requires_grad}
    grads = torch.autograd.grad(
        [y for y, _ in pairs], list(leaves.values()), [dy for _, dy in pairs]
    )
    named = {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}
    return {"o": o.detach(), **({"sums": pairs[1][0].detach()} if sums else {}), **named}


def run_whole(case, dtype, impl="reference"):
    """The same by one process."""
    whole, leaves = case.inputs(), case.leaves(dtype)
    found = case.call(leaves, attention, attention_varlen, impl=impl)
    return differentiate(
        found, leaves, whole["do"], whole["dsums"], case.options.get("return_sums")
    )


def run_parts(case, exact):
    """What a division by sums takes off the gradients, of which little may be left.

    As ``selfcheck.evaluate`` has it: the gradient of a weight is f_i (do_i . v_j - do_i . o_i).
    """
    if case.options.get("normalize") != "sum":
        return {}
    whole, leaves = case.inputs(), case.leaves(torch.float64)
    call = partial(
        case.call, dense=attention, varlen=attention_varlen, return_sums=True, impl="reference"
    )
    shares, sums = (x.detach() for x in call(leaves | {"v": torch.ones_like(leaves["v"])}))
    given = (whole["do"] * exact["o"]).sum(-1) * shares[..., 0] / sums.masked_fill(sums == 0, 1)
    parts = differentiate(call(leaves), leaves, torch.zeros_like(whole["do"]), given, True)
    return {name: x for name, x in parts.items() if name in ("dq", "dk", "dbias", "dmask")}


def join(case, results):
    """Results of the whole sequence from those of all ranks."""
    shards = case.shards
    joined = {}
    for name in results[0]:
        if not case.has_rows(name.removeprefix("d")):
            parts = [of_rank[name] for of_rank in results]
            joined[name] = sum(x.double() for x in parts).to(parts[0].dtype)
            continue
        whose = shards["k" if name in ("dk", "dv") else "q"]
        dim = results[0][name].dim() - 1 if name == "sums" else 2
        joined[name] = whose.join([of_rank[name] for of_rank in results], dim)
    return joined


def serves(case, strategy, num_ranks):
    """Whether a strategy can do it; a row of one query a rank is taken for its own."""
    is_own = set(case.queries) == {1} or any(case.has_rows(name) for name in case.scores)
    if strategy == "reduce" and case.scores and is_own:
        return False
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
