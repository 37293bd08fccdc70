"""Prompts in chunks: random cuts, ragged samples and grouped heads give the uncached result."""

import random
from itertools import pairwise

import pytest
import torch
from implementations import needs_gpu

from flashpoint.layers import Attention, KeyValueCache
from flashpoint.layers.spec import AttentionSpec

E, H = 16, 4
SPECS = {
    "relu": AttentionSpec(),
    "relu, root": AttentionSpec(alpha=0.5, gain="learned_per_head", gain_start=1.4),
    "sigmoid": AttentionSpec(activation="sigmoid", alpha=0, bias="-log_length"),
    "learned": AttentionSpec(alpha="learned", alpha_start=0.4),
    "relu4": AttentionSpec(activation="relu4"),
    "relu4/sum": AttentionSpec.parse("relu4/sum"),
    "exp/sum": AttentionSpec(activation="exp", normalize="sum", floor=0),
    "softmax": AttentionSpec(activation="softmax"),
}
KV_HEADS = (1, 2, 4)


def assert_close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def make_layer(word, kv_heads):
    torch.manual_seed(0)
    layer = Attention(E, H, SPECS[word], num_kv_heads=kv_heads, qk_norm="rms").double()
    return layer.requires_grad_(False)


def make_tokens(rng, samples, most=13):
    """One whole sequence a sample, of different lengths."""
    generator = torch.Generator().manual_seed(rng.randrange(10**6))
    lengths = [rng.randint(0, most) for _ in range(samples)]
    return [torch.randn(n, E, dtype=torch.float64, generator=generator) for n in lengths]


def draw_chunks(rng, sequences):
    """Every sequence cut at random into the same number of parts, of which some are empty."""
    count = rng.randint(1, 5)
    cuts = [sorted(rng.randint(0, len(x)) for _ in range(count - 1)) for x in sequences]
    ends = [[0, *cut, len(x)] for cut, x in zip(cuts, sequences, strict=True)]
    return [[(e[i], e[i + 1]) for e in ends] for i in range(count)]


def pad(parts, garbage):
    """Parts as one batch, with garbage behind the shorter ones."""
    longest = max(1, *map(len, parts))
    batch = torch.full((len(parts), longest, E), garbage, dtype=torch.float64)
    for row, part in zip(batch, parts, strict=True):
        row[: len(part)] = part
    return batch, torch.tensor([len(part) for part in parts])


@pytest.mark.parametrize("word", SPECS)
@pytest.mark.parametrize("seed", range(6))
def test_ragged_chunks_give_what_each_sequence_alone_gives(word, seed):
    rng = random.Random(f"{word} {seed}")
    layer = make_layer(word, rng.choice(KV_HEADS))
    sequences = make_tokens(rng, samples=rng.randint(2, 4))
    cache = KeyValueCache(rng.choice([1, 2, 64]))
    got = [[] for _ in sequences]
    for spans in draw_chunks(rng, sequences):
        parts = [x[a:b] for x, (a, b) in zip(sequences, spans, strict=True)]
        x, lengths = pad(parts, garbage=rng.choice([0.0, 7.0]))
        out = layer(x, causal=True, key_lengths=lengths, cache=cache)
        for own, row, part in zip(got, out, parts, strict=True):
            own.append(row[: len(part)])
    for own, x in zip(got, sequences, strict=True):
        assert_close(torch.cat(own), layer(x[None], causal=True)[0])
    assert cache.lengths.tolist() == [len(x) for x in sequences]


@pytest.mark.parametrize("word", SPECS)
@pytest.mark.parametrize("kv_heads", KV_HEADS)
def test_even_chunks_give_what_all_tokens_at_once_give(word, kv_heads):
    rng = random.Random(f"{word} {kv_heads}")
    layer = make_layer(word, kv_heads)
    x = torch.randn(3, 14, E, dtype=torch.float64)
    cuts = [0, *sorted(rng.sample(range(1, 14), 4)), 14]
    cache = KeyValueCache(2)
    parts = [layer(x[:, a:b], causal=True, cache=cache) for a, b in pairwise(cuts)]
    assert_close(torch.cat(parts, 1), layer(x, causal=True))
    assert cache.is_even


@pytest.mark.parametrize("word", ["relu", "relu4/sum", "softmax"])
@pytest.mark.parametrize("ragged", [False, True])
def test_chunk_that_is_not_causal_sees_all_of_itself_and_all_before(word, ragged):
    layer, cache = make_layer(word, 2), KeyValueCache()
    x = torch.randn(2, 9, E, dtype=torch.float64)
    first, second = (torch.tensor([5, 3]), torch.tensor([4, 2])) if ragged else (None, None)
    layer(x[:, :5], key_lengths=first, cache=cache)
    got = layer(x[:, 5:], key_lengths=second, cache=cache)
    for b in range(2):
        n, m = (int(first[b]), int(second[b])) if ragged else (5, 4)
        tokens = torch.cat([x[b : b + 1, :n], x[b : b + 1, 5 : 5 + m]], 1)
        assert_close(got[b, :m], layer(tokens)[0, n:])


def test_even_cache_goes_on_ragged_and_selected():
    layer, cache = make_layer("relu", 2), KeyValueCache(1)
    x = torch.randn(2, 8, E, dtype=torch.float64)
    layer(x[:, :3], causal=True, cache=cache)
    layer(x[:, 3:6], causal=True, key_lengths=torch.tensor([3, 0]), cache=cache)
    cache.select(torch.tensor([1, 0, 1]))
    more = x[[1, 0, 1], 6:]
    got = layer(more, causal=True, cache=cache)
    for row, (b, length) in zip(range(3), ((1, 3), (0, 6), (1, 3)), strict=True):
        tokens = torch.cat([x[b : b + 1, :length], more[row : row + 1]], 1)
        assert_close(got[row], layer(tokens, causal=True)[0, length:])
    assert cache.lengths.tolist() == [5, 8, 5]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("word", ["relu", "relu4/sum", "softmax"])
def test_chunks_on_a_gpu_are_those_on_a_cpu(word):
    lengths = (torch.tensor([5, 3]), torch.tensor([2, 6]), torch.tensor([1, 1]))
    parts = torch.randn(2, 12, E, dtype=torch.float64).split([5, 6, 1], dim=1)
    results = []
    for device in ("cpu", "cuda"):
        layer, cache = make_layer(word, 2).float().to(device), KeyValueCache(4)
        given = [(x.float().to(device), n.to(device)) for x, n in zip(parts, lengths, strict=True)]
        found = [layer(x, causal=True, key_lengths=n, cache=cache).cpu() for x, n in given]
        results.append([o[b, : n[b]] for o, n in zip(found, lengths, strict=True) for b in (0, 1)])
    for ours, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
