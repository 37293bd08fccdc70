"""Random calls of scaled_dot_product_attention, and what comes of a call."""

import math
import random

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def draw_shapes(rng):
    """Shapes of query, key, value and scores: any number of batch dims, some to broadcast."""
    rank = rng.choice([2, 3, 3, 4, 4, 4, 5, 6])
    gqa = rank > 2 and rng.random() < 0.3
    outer = [rng.randint(1, 3) for _ in range(rank - 2)]
    lengths = (rng.randint(1, 7), rng.randint(1, 7))
    E, Ev = rng.choice([1, 3, 8]), rng.choice([1, 5, 8])

    def fewer(sizes):  # as broadcasting allows: ones, and dims left out in front
        sizes = [1 if rng.random() < 0.25 else size for size in sizes]
        return sizes[rng.choice([0, 0, 0, 1]) :]

    heads = rng.randint(1, 3)
    if gqa:
        outers = [[*fewer(outer[:-1]), n] for n in (heads * rng.randint(1, 3), heads, heads)]
    else:
        outers = [fewer(outer) for _ in range(3)]
    lasts = [(lengths[0], E), (lengths[1], E), (lengths[1], Ev)]
    shapes = [(*sizes, *last) for sizes, last in zip(outers, lasts, strict=True)]
    batch = torch.broadcast_shapes(*(x[:-1] if gqa else x for x in outers[:2]))
    return shapes, (*batch, *outers[0][-1:], *lengths) if gqa else (*batch, *lengths), gqa


def draw_mask(rng, scores):
    """A mask, is_causal or neither. Some rows see nothing; some values are -inf."""
    kind = rng.choice(["none", "causal", "bool", "float", "hiding", "rows"])
    if kind in ("none", "causal"):
        return {"is_causal": kind == "causal"}
    shape = [1 if rng.random() < 0.25 else size for size in scores]
    shape = shape[rng.randint(0, len(shape) - 2) :]
    if kind == "bool":
        return {"attn_mask": torch.rand(shape) > 0.4}
    mask = torch.randn(shape, dtype=torch.float64)
    if kind == "hiding":
        mask = mask.masked_fill(torch.rand(shape) > 0.6, -math.inf)
    if kind == "rows":
        mask = mask.masked_fill(torch.rand(*shape[:-1], 1) > 0.6, -math.inf)
    return {"attn_mask": mask}


def draw_call(seed):
    """Tensors and options of one call, in fp64."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    shapes, scores, gqa = draw_shapes(rng)
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    if rng.random() < 0.4:  # dense, but in another order
        tensors = [x.mT.contiguous().mT for x in tensors]
    options = draw_mask(rng, scores)
    if gqa:
        options["enable_gqa"] = True
    if rng.random() < 0.3:
        options["scale"] = rng.choice([0.0, 0.3, -1.0])
    return tensors, options


def run(call, tensors, options, dtype=None):
    """The result of a call, and the gradients of all floating tensors."""
    options = dict(options)
    leaves = [x.detach().to(dtype).clone().requires_grad_() for x in tensors]
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        leaves.append(mask.detach().to(dtype).clone().requires_grad_())
        options["attn_mask"] = leaves[-1]
    with sdpa_kernel(SDPBackend.MATH):
        o = call(*leaves[:3], **options)
    do = torch.linspace(-1, 1, o.numel(), dtype=o.dtype, device=o.device).view(o.shape)
    return o, *torch.autograd.grad(o, leaves, do)
