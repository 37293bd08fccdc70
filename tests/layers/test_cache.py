"""Attention with a cache: token by token gives what all tokens at once give."""

import pytest
import torch

from flashpoint import attention
from flashpoint.errors import InputError
from flashpoint.layers.attention import Attention
from flashpoint.layers.cache import KeyValueCache
from flashpoint.layers.spec import AttentionSpec

B, L, E, H = 3, 11, 24, 4
SPECS = {
    "relu": AttentionSpec(alpha=0.5, gain="learned_per_head", gain_start=1.4),
    "keys": AttentionSpec(length="keys"),
    "number": AttentionSpec(length=7),
    "sigmoid": AttentionSpec(activation="sigmoid", alpha=0, bias="-log_length"),
    "learned": AttentionSpec(alpha="learned", alpha_start=0.4),
    "relu4/sum": AttentionSpec.parse("relu4/sum"),
    "sum, keys": AttentionSpec(
        activation="relu2", normalize="sum", floor=0.1, length="keys", gain="learned"
    ),
    "sum, log": AttentionSpec(activation="softplus", normalize="sum", bias="-log_length"),
    "softmax": AttentionSpec(activation="softmax"),
}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def make_layer(spec, **settings):
    torch.manual_seed(0)
    return Attention(E, H, spec, num_kv_heads=2, qk_norm="layer", **settings).double()


def make_x(tokens=L, samples=B, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, tokens, E, generator=generator, dtype=torch.float64)


def assert_close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


@every_spec
@pytest.mark.parametrize("first", [1, 4, 9])
@pytest.mark.parametrize("capacity", [1, 3, 64])
@pytest.mark.pairwise
def test_token_by_token_is_all_at_once(spec, first, capacity):
    layer, x, cache = make_layer(spec), make_x(), KeyValueCache(capacity)
    whole = layer(x, causal=True)
    if spec.length == "keys":  # which tokens come later must not matter
        whole = torch.cat([layer(x[:, : i + 1], causal=True)[:, -1:] for i in range(L)], 1)
        first = 1
    steps = [layer(x[:, :first], causal=True, cache=cache)]
    steps += [layer(x[:, i : i + 1], causal=True, cache=cache) for i in range(first, L)]
    assert_close(torch.cat(steps, 1), whole)
    assert cache.num_tokens == L
    assert cache.lengths.tolist() == [L] * B


@pytest.mark.parametrize("word", ["relu", "sigmoid", "relu4/sum", "softmax"])
def test_samples_of_different_lengths_go_on_each_behind_its_last_token(word):
    layer, cache = make_layer(SPECS[word]), KeyValueCache(4)
    lengths = torch.tensor([5, 1, 3])
    prompt, more = make_x(5), make_x(4, seed=7)
    first = layer(prompt, causal=True, key_lengths=lengths, cache=cache)
    steps = [layer(more[:, i : i + 1], causal=True, cache=cache) for i in range(4)]
    for b, length in enumerate(lengths.tolist()):
        tokens = torch.cat([prompt[b : b + 1, :length], more[b : b + 1]], 1)
        alone = layer(tokens, causal=True)[0]
        assert_close(first[b, :length], alone[:length])
        assert_close(torch.cat([step[b] for step in steps]), alone[length:])
    assert cache.lengths.tolist() == [9, 5, 7]


@every_spec
def test_cross_attention_projects_the_context_once(spec):
    layer, cache = make_layer(spec, context_dim=E), KeyValueCache()
    x, context = make_x(), make_x(6, seed=3)
    lengths = torch.tensor([6, 2, 0])
    whole = layer(x, context, key_lengths=lengths)
    first = layer(x[:, :2], context, key_lengths=lengths, cache=cache)
    layer.kv.weight.zero_()  # nobody looks at it any more
    rest = layer(x[:, 2:], context, key_lengths=lengths, cache=cache)
    assert_close(torch.cat([first, rest], 1), whole)


@pytest.mark.parametrize("even", [True, False])
def test_selected_samples_go_on_from_where_they_were(even):
    layer, cache = make_layer(SPECS["relu"]), KeyValueCache(2)
    lengths = None if even else torch.tensor([4, 2, 3])
    prompt, more = make_x(4), make_x(2, samples=4, seed=7)
    layer(prompt, causal=True, key_lengths=lengths, cache=cache)
    rows = torch.tensor([2, 0, 2, 1])
    cache.select(rows)
    steps = torch.cat([layer(more[:, i : i + 1], cache=cache) for i in range(2)], 1)
    for b, row in enumerate(rows.tolist()):
        length = 4 if lengths is None else int(lengths[row])
        tokens = torch.cat([prompt[row : row + 1, :length], more[b : b + 1]], 1)
        assert_close(steps[b], layer(tokens, causal=True)[0, length:])


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (torch.tensor([0, 3]), "rows are from 0 to 3; the cache has samples 0 to 2"),
        (torch.tensor([-1, 0]), "rows are from -1 to 0"),
        (torch.tensor([0.0]), r"rows must be int32 or int64 of shape \[1\]"),
        (torch.tensor(0), r"rows must be int32 or int64 of shape \[1\]. Got int64 of shape \[\]"),
        ([0, 1], "rows must be an integer tensor"),
    ],
)
def test_samples_that_are_not_there_are_not_selected(rows, match):
    layer, cache = make_layer(SPECS["relu"]), KeyValueCache(2)
    layer(make_x(4), causal=True, cache=cache)
    before = cache.whole()
    with pytest.raises(InputError, match=match):
        cache.select(rows)
    assert all(map(torch.equal, cache.whole(), before))


def test_a_step_is_one_call_with_one_query_and_no_mask():
    calls = []

    def attend(q, k, v, **options):
        calls.append((q.shape, k.shape, options))
        return attention(q, k, v, **options)

    layer = Attention(E, H, SPECS["relu"], attend=attend)
    cache, x = KeyValueCache(4), make_x().float()
    layer(x[:, :5], causal=True, cache=cache)
    layer(x[:, 5:6], causal=True, cache=cache)
    q_shape, k_shape, options = calls[1]
    assert (q_shape[2], k_shape[2]) == (1, 6)
    assert not options["causal"]
    assert options["mask"] is None


def test_wrong_use_is_one_line():
    layer, cache, x = Attention(E, H), KeyValueCache(), make_x().float()
    layer(x[:, :2], cache=cache)
    for call, message in (
        (lambda: layer(x[:2, 2:4], cache=cache), "2 tokens of 2 samples were given to a cache"),
        (lambda: layer(x[:2, 2:3], cache=cache), "1 tokens of 2 samples were given to a cache"),
        (
            lambda: layer(x[:, 2:4], key_lengths=torch.tensor([2, 3, 0]), cache=cache),
            r"key_lengths\[1\] is 3; it must lie between 0 and the 2 keys",
        ),
        (
            lambda: layer(x[:, 2:4], key_lengths=torch.tensor([2, 1]), cache=cache),
            r"key_lengths must be int32 or int64 of shape \[3\]. Got int64 of shape \[2\]",
        ),
        (lambda: layer(x, attn_mask=torch.ones(L, L), cache=cache), "a mask and a cache"),
        (lambda: layer(x, mask=torch.ones(L, L) > 0, cache=cache), "a mask and a cache"),
        (lambda: KeyValueCache(0), "capacity=0"),
    ):
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize("word", ["relu", "softmax"])
@pytest.mark.parametrize("lengths", [[9, 1, 1], [2.5, 1.0, 1.0], [1, 1], [-1, 1, 1]])
def test_wrong_lengths_are_refused_and_leave_the_cache_empty(word, lengths):
    layer, cache, x = Attention(E, H, word), KeyValueCache(), make_x().float()[:, :4]
    for options in ({}, {"cache": cache}):
        with pytest.raises(InputError, match="key_lengths"):
            layer(x, causal=True, key_lengths=torch.tensor(lengths), **options)
    assert cache.is_empty
