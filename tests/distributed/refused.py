"""What tests let ranks do that must be refused; functions that processes import by name."""

import copy
import pickle

import torch
import torch.distributed as dist
from distributed.cases import group_of_size
from distributed.on_ranks import message_of
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import flashpoint
from flashpoint import layers
from flashpoint.distributed import Rates, sequence_parallel, unshard
from flashpoint.ops.sdpa import current_attend


def call_with(by_rank, make=None, shape=(1, 2, 4, 8)):
    """The error that ranks get who pass different things; ``by_rank``: (dtype, shape, options)."""
    group = group_of_size(2)
    given = by_rank.get(dist.get_rank(group), {})
    x = torch.ones(given.get("shape", shape), dtype=given.get("dtype", torch.float32))
    attend = sequence_parallel(group, **(make or {}), **given.get("make", {}))
    x.requires_grad_(given.get("requires_grad", False))
    return message_of(attend, x, x, x, **given.get("options", {}))


def refusals():
    """One line each of what is not served."""
    group = group_of_size(2)
    attend = sequence_parallel(group, "ulysses")
    q = torch.randn(1, 1, 4, 8)
    layer = layers.Attention(16, 2, "softmax", attend=attend)
    cached = layers.Attention(16, 2, "relu", attend=attend)
    x = torch.randn(1, 4, 16)
    return [
        message_of(attend, q, q, q),
        message_of(attend, q, q, q, mask=torch.ones(4, 4, dtype=torch.bool)),
        message_of(attend, q, q, q, bias=torch.ones(3, 8)),
        message_of(sequence_parallel(group, "reduce"), q, q, q, bias=torch.ones(4, 8)),
        message_of(attend, q, q, q, key_lengths=torch.tensor([9])),
        message_of(layer, x),
        message_of(cached, x, cache=layers.KeyValueCache()),
        message_of(cached.weights, q, q),
        message_of(sequence_parallel, group, "rings"),
        message_of(sequence_parallel, "world"),
        message_of(sequence_parallel, init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))),
    ]


def varlen_refusals():
    """One line each of what is wrong with packed documents."""
    group = group_of_size(2)
    attend = sequence_parallel(group, "ring")
    x = torch.randn(4, 2, 8)
    mine = dist.get_rank(group)

    def said(ends=(0, 3, 8), longest=5, keys=None, **options):
        cu = [torch.tensor(ends), torch.tensor(keys or ends)]
        return message_of(attend.varlen, x, x, x, *cu, longest, longest, **options)

    return [
        said((0, 3, 7)),
        said((0, 5, 3, 8)),
        said(longest=4),
        said((0, 3, 8) if mine else (0, 2, 8), longest=6),
        said(keys=(0, 8)),
        said(mask=torch.ones(5, 5, dtype=torch.bool)),
        said(key_lengths=torch.tensor([9])),
        message_of(attend.varlen, x[None], x, x, *[torch.tensor([0, 8])] * 2, 8, 8),
    ]


def unshard_with(by_rank):
    """What ranks hear that unshard other things."""
    group = group_of_size(2)
    shape, dtype, dim, layout = by_rank[dist.get_rank(group)]
    return message_of(unshard, torch.ones(shape, dtype=dtype), group, dim=dim, layout=layout)


def constructors():
    """One line each of what cannot be made, and what copies and pickles give."""
    group = group_of_size(2)
    half = DeviceMesh("cpu", [0, 1])
    attend = sequence_parallel(group)
    layer = layers.Attention(16, 2, "relu", attend=attend)
    assert copy.deepcopy(layer).attend is copy.copy(attend) is attend
    said = [message_of(sequence_parallel, group, rates=rates) for rates in WRONG_RATES]
    said += [message_of(sequence_parallel, group, timeout_s=x) for x in WRONG_TIMEOUTS]
    outside = message_of(sequence_parallel, half)
    return [*said, message_of(pickle.dumps, layer)], outside


WRONG_RATES = (Rates(0, 0), Rates(1.0, float("nan")), Rates("fast", 1), (1, 1))
WRONG_TIMEOUTS = (0, -1.0, float("nan"), "1")


def overlapping_contexts():
    """What the context manager says that ends before one that began later."""
    a, b = (sequence_parallel(group_of_size(2), name) for name in ("ring", "gather"))
    a.__enter__()
    b.__enter__()
    said = message_of(a.__exit__)
    b.__exit__()
    a.__exit__()
    assert current_attend() is flashpoint.attention
    return said


def counts_with(by_rank):
    """What ranks hear whose layer learns from n_i and gets a mask on some."""
    group = group_of_size(2)
    attend = sequence_parallel(group, timeout_s=5.0)
    layer = layers.Attention(16, 2, {"activation": "relu", "alpha": "learned"}, attend=attend)
    return message_of(layer, torch.ones(1, 4, 16), **by_rank.get(dist.get_rank(group), {}))


def second_derivative():
    """What a gradient of a gradient says."""
    attend = sequence_parallel(group_of_size(2), "ring")
    q = torch.randn(1, 1, 4, 8, requires_grad=True)
    return message_of(torch.autograd.grad, attend(q, q, q).sum(), q, create_graph=True)
