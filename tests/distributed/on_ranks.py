"""What tests let every rank do: functions that processes import by name."""

from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist
from distributed.cases import group_of_size
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import flashpoint
from flashpoint import layers
from flashpoint.convert.substitute import Substitute
from flashpoint.convert.transformers import calls
from flashpoint.distributed import agreement, ring, sequence_parallel, shard, unshard

STRATEGIES = ("gather", "ring", "reduce", "ulysses")


def message_of(function, *given, **options):
    """The error of a call that must fail, with its type."""
    try:
        function(*given, **options)
    except flashpoint.FlashpointError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def changing_lengths(check):
    """Lengths that change on one rank alone, call after call: errors of results."""
    group = group_of_size(2)
    attend = sequence_parallel(group, "ring", check=check)
    errors = []
    for lengths in [(3, 3), (3, 2), (3, 3), (4, 2)]:
        generator = torch.Generator().manual_seed(sum(lengths))
        q = torch.randn(1, 1, sum(lengths), 4, generator=generator)
        mine = q.split(lengths, 2)[dist.get_rank(group)]
        exact = flashpoint.attention(q, q, q, causal=True)
        part = exact.split(lengths, 2)[dist.get_rank(group)]
        errors.append((attend(mine, mine, mine, causal=True) - part).abs().max().item())
    return errors


def layer_results(strategy, layout, spec, causal):
    """Output and gradients of a layer on shards, and by one process."""
    group = group_of_size(4)
    torch.manual_seed(0)
    attend = sequence_parallel(group, strategy, layout=layout)
    options = {"num_kv_heads": 4, "qk_norm": "rms", "gate": "sigmoid"}
    whole = layers.Attention(32, 8, spec, **options, dtype=torch.float64)
    cut = layers.Attention(32, 8, spec, **options, dtype=torch.float64, attend=attend)
    cut.load_state_dict(whole.state_dict())
    x = torch.randn(2, 19, 32, dtype=torch.float64)
    do = torch.randn(2, 19, 32, dtype=torch.float64)
    whole(x, causal=causal).backward(do)
    mine = partial(shard, mesh=group, layout=layout)
    o = cut(mine(x), causal=causal)
    o.backward(mine(do))
    errors = [(unshard(o, group, layout=layout) - whole(x, causal=causal)).abs().max().item()]
    for a, b in zip(cut.parameters(), whole.parameters(), strict=True):
        dist.all_reduce(a.grad, group=group)  # each rank has what its own queries gave
        errors.append((a.grad - b.grad).abs().max().item())
    return max(errors)


def take_heads(layer, rank, size):
    """Leave a layer some of its heads: rows of qkv, columns of proj; its output is a part."""
    heads, D = layer.num_heads // size, layer.head_dim
    of_heads = slice(rank * heads * D, (rank + 1) * heads * D)
    for name in ("weight", "bias"):
        rows = getattr(layer.qkv, name).detach().unflatten(0, (3, -1))[:, of_heads]
        setattr(layer.qkv, name, nn.Parameter(rows.flatten(0, 1).clone()))
    layer.proj.weight = nn.Parameter(layer.proj.weight.detach()[:, of_heads].clone())
    if rank:
        layer.proj.bias = None
    layer.num_heads = layer.num_kv_heads = heads
    return of_heads


def tensor_and_sequence(strategy):
    """A layer with heads on two ranks and tokens on two: its error against one process."""
    mesh = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("data", "sequence", "tensor"))
    sequence, tensor = mesh["sequence"], mesh["tensor"]
    torch.manual_seed(0)
    whole = layers.Attention(32, 4, "relu2", dtype=torch.float64)
    attend = sequence_parallel(sequence, strategy)
    cut = layers.Attention(32, 4, "relu2", dtype=torch.float64, attend=attend)
    cut.load_state_dict(whole.state_dict())
    of_heads = take_heads(cut, tensor.get_local_rank(), tensor.size())
    x = torch.randn(2, 12, 32, dtype=torch.float64)
    do = torch.randn(2, 12, 32, dtype=torch.float64)
    o = cut(shard(x, sequence), causal=True)
    o.backward(shard(do, sequence))
    total = o.detach().clone()
    dist.all_reduce(total, group=tensor.get_group())  # the projection's own reduction
    expected = whole(x, causal=True)
    expected.backward(do)
    dist.all_reduce(cut.qkv.weight.grad, group=sequence.get_group())
    exact = whole.qkv.weight.grad.unflatten(0, (3, -1))[:, of_heads].flatten(0, 1)
    errors = (unshard(total, sequence) - expected, cut.qkv.weight.grad - exact)
    return max(x.abs().max().item() for x in errors)


def deferred_reduction():
    """Partial outputs of key shards go through proj unadded; one reduction adds both: its error.

    Sums over keys and over heads commute with a linear map, so one all-reduce serves both.
    """
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("sequence", "tensor"))
    rank, half = mesh["sequence"].get_local_rank(), mesh["tensor"].get_local_rank()
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 4, 6, 8, dtype=torch.float64)
    proj = torch.randn(32, 32, dtype=torch.float64)
    heads, keys = slice(2 * half, 2 * half + 2), slice(3 * rank, 3 * rank + 3)
    o = flashpoint.attention(q[:, heads], k[:, heads, keys], v[:, heads, keys], length=6)
    part = o.transpose(1, 2).flatten(2) @ proj[16 * half : 16 * half + 16]
    dist.all_reduce(part)
    whole = flashpoint.attention(q, k, v).transpose(1, 2).flatten(2) @ proj
    return (part - whole).abs().max().item()


def converted(spec, causal, cross):
    """A converted model's call of SDPA under the context manager: its error."""
    group = group_of_size(2)
    torch.manual_seed(0)
    substitute = Substitute(spec, num_heads=2).double()
    q = torch.randn(1, 2, 9, 4, dtype=torch.float64)
    k = torch.randn(1, 2, 5, 4, dtype=torch.float64) if cross else q
    with torch.no_grad():
        for parameter in substitute.parameters():
            parameter.fill_(0.7)
        exact = substitute(q, k, k, is_causal=causal)
        mine = partial(shard, mesh=group, dim=2)
        with sequence_parallel(group, "ring") as attend:
            o = substitute(mine(q), mine(k), mine(k), is_causal=causal)
            refusal = message_of(Substitute("softmax", num_heads=2), mine(q), mine(k), mine(k))
        after = flashpoint.scaled_dot_product_attention(q, k, k)
        assert torch.equal(after, flashpoint.attention(q, k, k))
        error = (unshard(o, group, dim=2) - exact).abs().max().item()
        return error, refusal, attend.transport.sent


def converted_with_mask(spec, is_bool, strategy):
    """A converted model's call with rows of a mask over all keys: its error."""
    group = group_of_size(2)
    torch.manual_seed(0)
    substitute = Substitute(spec, num_heads=2).double()
    q, k = (torch.randn(1, 2, length, 4, dtype=torch.float64) for length in (9, 5))
    mask = torch.rand(1, 1, 9, 5, dtype=torch.float64)
    mask = mask > 0.3 if is_bool else mask.masked_fill(mask < 0.3, -torch.inf)
    mine = partial(shard, mesh=group, dim=2)
    with torch.no_grad():
        exact = substitute(q, k, k, attn_mask=mask)
        with sequence_parallel(group, strategy):
            o = substitute(mine(q), mine(k), mine(k), attn_mask=mine(mask))
        return (unshard(o, group, dim=2) - exact).abs().max().item()


def hugging_face(num_tokens, num_cached):
    """A causal call as transformers makes it, few tokens a rank: its error, or what it says."""
    group = group_of_size(2)
    torch.manual_seed(0)
    module, substitute = nn.Module(), Substitute("relu", num_heads=2)
    q = torch.randn(1, 2, num_tokens, 4, dtype=torch.float64)
    mine = shard(q, group, dim=2)
    keys = torch.cat([torch.ones(1, 2, num_cached, 4, dtype=torch.float64), mine], 2)
    with sequence_parallel(group, "ring", timeout_s=5.0):
        call = partial(calls.attend, substitute, module, mine, keys, keys, None)
        if num_cached:
            return message_of(call)
        o, _ = call()
    exact, _ = calls.attend(substitute, module, q, q, q, None)
    return (o - shard(exact, group)).abs().max().item()


def wrapped(spec):
    """A layer whose ``attend`` binds arguments, twice: its error, or what it says."""
    group = group_of_size(2)
    torch.manual_seed(0)
    attend = partial(partial(sequence_parallel(group, "ring"), impl="reference"), scale=0.5)
    cut = layers.Attention(16, 2, spec, dtype=torch.float64, attend=attend)
    if spec == "softmax":
        return message_of(cut, torch.randn(1, 4, 16, dtype=torch.float64))
    whole = layers.Attention(
        16, 2, spec, dtype=torch.float64, attend=partial(flashpoint.attention, scale=0.5)
    )
    with torch.no_grad():
        for parameter in [x for x in cut.parameters() if x.dim() < 2]:
            parameter.fill_(0.7)
        whole.load_state_dict(cut.state_dict())
        x = torch.randn(1, 9, 16, dtype=torch.float64)
        return (cut(shard(x, group)) - shard(whole(x), group)).abs().max().item()


def mixed_losses(strategy, options):
    """Rank 0 differentiates o, rank 1 sums, rank 2 both, rank 3 o: the largest error."""
    group = group_of_size(4)
    torch.manual_seed(0)
    rank, attend = dist.get_rank(group), sequence_parallel(group, strategy, timeout_s=5.0)
    whole = [x.requires_grad_() for x in torch.randn(3, 1, 4, 10, 8, dtype=torch.float64)]
    mine = [shard(x.detach(), group, dim=2).clone().requires_grad_() for x in whole]
    o, *sums = attend(*mine, **options)
    uses = [(1, 0), (0, 1), (1, 1), (1, 0)]  # of o and of sums, by rank
    terms = [x.sum() for x, used in zip((o, sums[-1]), uses[rank], strict=True) if used]
    sum(terms).backward()
    o, *sums = flashpoint.attention(*whole, **options)
    rows = torch.tensor(uses).repeat_interleave(torch.tensor([3, 3, 2, 2]), 0)
    ((o * rows[:, :1]).sum() + (sums[-1] * rows[:, 1]).sum()).backward()
    pairs = zip(mine, whole, strict=True)
    return max((a.grad - shard(b.grad, group, dim=2)).abs().max().item() for a, b in pairs)


def backward_under_autocast(strategy, impl):
    """How far gradients are off where only backward is under autocast."""
    attend = sequence_parallel(group_of_size(2), strategy)
    torch.manual_seed(0)
    q = torch.randn(1, 2, 32, 8, requires_grad=True)
    (exact,) = torch.autograd.grad(attend(q, q, q, impl=impl).sum(), q)
    o = attend(q, q, q, impl=impl).sum()
    with torch.autocast("cpu", torch.bfloat16):
        (found,) = torch.autograd.grad(o, q)
    return (found - exact).abs().max().item()


def autocast():
    """Dtypes of a result and of a gradient where autocast has the say."""
    attend = sequence_parallel(group_of_size(2), "reduce")
    q = torch.randn(1, 2, 4, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        o = attend(q, q, q)
    o.float().sum().backward()
    return o.dtype, q.grad.dtype


def forward_under_autocast(strategy, impl):
    """How far a result under autocast is off that of inputs which are cast by hand."""
    attend = sequence_parallel(group_of_size(2), strategy)
    torch.manual_seed(0)
    q = torch.randn(1, 2, 32, 8)
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(q, q, q, impl=impl)
    q = q.bfloat16()
    return (found - attend(q, q, q, impl=impl)).abs().max().item()


def large_sums(strategy):
    """Results and gradients in fp16 whose sums over keys leave its range."""
    attend = sequence_parallel(group_of_size(2), strategy)
    q = torch.full((1, 2, 256, 16), 4.0, dtype=torch.float16, requires_grad=True)
    v = torch.full((1, 2, 256, 16), 64.0, dtype=torch.float16, requires_grad=True)
    o = attend(q, q, v)
    grads = torch.autograd.grad(o.float().mean(), (q, v))
    return o.detach().unique().tolist(), [x.isfinite().all().item() for x in grads]


def change_before_backward(strategy, name):
    """What backward says where a tensor of the call was changed in place since."""
    attend = sequence_parallel(group_of_size(2), strategy, timeout_s=5.0)
    q = torch.randn(1, 2, 4, 8, requires_grad=True)
    given = {"key_lengths": torch.tensor([5]), "mask": torch.ones(8), "bias": torch.ones(8)}[name]
    o = attend(q, q, q, **{name: given})
    given.fill_(2)
    try:
        o.sum().backward()
    except RuntimeError as error:
        return str(error)
    return "no error"


def asked_again(check):
    """How often a rank compares its call with others', of four calls of two kinds."""
    attend = sequence_parallel(group_of_size(2), "gather", check=check)
    asked = []
    ask = attend.transport.exchange_numbers
    attend.transport.exchange_numbers = lambda numbers: asked.append(numbers) or ask(numbers)
    q = torch.randn(1, 2, 4, 8)
    for causal in (False, True, True, False):
        attend(q, q, q, causal=causal)
    return len(asked)


def explained():
    """What auto says before a call, and what it chose."""
    attend = sequence_parallel(group_of_size(4))
    q, k = torch.randn(1, 4, 1, 8), torch.randn(1, 4, 50, 8)
    before = attend.explain(q, k, k)
    sent = attend.transport.sent
    attend(q, k, k)
    return before.strategy, str(before), sent, attend.chosen.strategy


def remembered(num_calls):
    """How many calls ``check="first"`` remembers of so many."""
    attend = sequence_parallel(group_of_size(2), "gather", check="first")
    with mock.patch.object(agreement, "MOST_KNOWN", 8):
        for i in range(num_calls):
            attend._agreement.ask(attend.transport, agreement.Signature({"call": i}))
    return len(attend._agreement._known)


def layer_inside(spec):
    """What a layer says that was not made for shards, where a context manager has them."""
    with sequence_parallel():
        return message_of(layers.Attention(8, 2, spec), torch.randn(1, 4, 8))


def order_of_ring():
    """What a ring does, forward and backward: messages begin and end, blocks are computed."""
    done = []

    def told(name, usual):
        def run(*args, **options):
            done.append(name)
            return usual(*args, **options)

        return run

    with ExitStack() as stack:
        for owner, name, word in (
            (ring.Travel, "pass_on", "begin"),
            (ring.Partial, "add", "compute"),
            (ring.PartialGradients, "add", "compute"),
            (ring.Pending, "wait", "end"),
        ):
            usual = getattr(owner, name)
            stack.enter_context(mock.patch.object(owner, name, told(word, usual)))
        q = torch.randn(1, 2, 8, 4, requires_grad=True)
        sequence_parallel(strategy="ring")(q, q, q).sum().backward()
    return done


def sums_on_the_way():
    """Sums of parts as NCCL's reduce-scatter makes them, of other lengths for each rank."""
    attend = sequence_parallel()
    mine, size = float(dist.get_rank()), attend.transport.size
    parts = [[torch.full((rank + 1,), mine), torch.full((2,), 10 + mine)] for rank in range(size)]
    with mock.patch.object(attend.transport, "_adds_on_the_way", return_value=True):
        found = attend.transport.reduce_scatter(parts, "parts")
    return [x.tolist() for x in found]


def patience():
    """How long ranks wait for others that notice later, by what was said and by the group."""
    group = dist.new_group(timeout=timedelta(seconds=7))
    made = [sequence_parallel(group, timeout_s=x) for x in (3.0, None)]
    return [attend.transport._patience_s() for attend in made]


def numbers_of_valid():
    """How many queries are valid on all ranks, where each rank has so many as its number."""
    attend = sequence_parallel()
    q = torch.ones(1, 1, 4, 8)
    valid = torch.arange(4) < dist.get_rank()
    return attend.visibility_of(q, q, None, False, None).total(valid).item()


def sums_of_parts():
    """Of bf16 parts 256, 1, 1 and 1: a reduce-scatter's sum, and a ring's dv."""
    part = 256.0 if dist.get_rank() == 0 else 1.0
    mine = torch.full((3,), part, dtype=torch.bfloat16)
    attend = sequence_parallel(strategy="ring")
    (total,) = attend.transport.reduce_scatter([[mine]] * attend.transport.size, "parts")
    q, k, v = (torch.ones(1, 1, 1, 1, dtype=torch.bfloat16) for _ in range(3))
    v.requires_grad_()
    o = attend(q, k, v, activation="identity", length=1.0)
    o.backward(torch.full_like(o, part))
    return total.tolist(), v.grad.item()
