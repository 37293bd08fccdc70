"""Greedy and beam search beside searches written out, one source and one prefix at a time."""

import math

import pytest
import torch

from flashpoint.errors import InputError
from flashpoint.layers.spec import AttentionSpec
from flashpoint.models.generation import PAD, beam, greedy
from flashpoint.models.reluformer import RELU_ATTENTION, ReLUFormer, ReLUFormerConfig

V, BOS, EOS = 11, 2, 3
SPECS = {"relu": RELU_ATTENTION, "softmax": AttentionSpec(activation="softmax")}
SPECS |= {"relu4/sum": AttentionSpec.parse("relu4/sum")}
specs = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
TOKENS = {"bos": BOS, "eos": EOS}


def make(spec=RELU_ATTENTION, seed=2, **fields):
    """An fp64 model of large weights, so that everything matters."""
    torch.manual_seed(seed)
    config = ReLUFormerConfig(
        vocabulary_size=V, width=16, encoder_depth=1, decoder_depth=2, num_heads=2, mlp_dim=24,
        attention=spec, tied_embeddings=False, **fields,
    )  # fmt: skip
    model = ReLUFormer(config).double()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    model.head.weight.data[EOS] *= 2.0  # the end comes sooner or later, and not always
    return model


def make_sources(count=5, length=7, seed=1):
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(4, V, (count, length), generator=generator)
    lengths = torch.randint(1, length + 1, (count,), generator=generator)
    return source, lengths


def log_probabilities(model, source, prefix):
    """Of the next token, by the whole model, without a cache."""
    with torch.no_grad():
        logits = model(source[None], torch.tensor([[BOS, *prefix]]))
    found = logits[0, -1].log_softmax(-1)
    found[BOS] = found[PAD] = -math.inf
    return found


def total(model, source, tokens):
    return sum(
        log_probabilities(model, source, tokens[:i])[token].item()
        for i, token in enumerate(tokens)
    )


def plain_greedy(model, source, max_length):
    tokens = []
    while len(tokens) < max_length and EOS not in tokens:
        tokens.append(int(log_probabilities(model, source, tokens).argmax()))
    return tokens


def plain_beam(model, source, max_length, size, exponent):
    """The search as its docstring has it, with lists of hypotheses."""
    live, ended = [(0.0, [])], []
    for length in range(1, max_length + 1):
        candidates = []
        for score, tokens in live:
            found = log_probabilities(model, source, tokens)
            candidates += [(score + found[t].item(), [*tokens, t]) for t in range(V)]
        candidates = sorted(candidates, reverse=True)[: 2 * size]
        penalty = ((5 + length) / 6) ** exponent
        for score, tokens in candidates[:size]:
            if tokens[-1] == EOS and score > -math.inf:
                ended.append((score / penalty, tokens))
        live = [c for c in candidates if c[1][-1] != EOS][:size]
        ended = sorted(ended, reverse=True)[:size]
        if len(ended) == size:
            break
    if not ended:
        ended = [(score / penalty, tokens) for score, tokens in live]
    return max(ended)


def tokens_of(found, i):
    return found.tokens[i, : found.lengths[i]].tolist()


@specs
@pytest.mark.parametrize("pre_norm", [True, False])
@pytest.mark.parametrize("hypotheses", [1, 3])
def test_cached_steps_give_the_logits_of_the_whole_model(spec, pre_norm, hypotheses):
    model = make(spec, pre_norm=pre_norm)
    source, lengths = make_sources()
    target = torch.randint(V, (5 * hypotheses, 70), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        state = model.start_decoding(source, lengths)
        steps = [model.decode_step(target[:, i], state) for i in range(70)]  # past a buffer's end
        rows = torch.arange(5).repeat_interleave(hypotheses)
        whole = model(source[rows], target, source_lengths=lengths[rows])
    torch.testing.assert_close(torch.stack(steps, 1), whole, rtol=1e-9, atol=1e-10)


@specs
def test_selected_hypotheses_go_on_as_if_they_had_been_there(spec):
    model = make(spec)
    source, lengths = make_sources(2)
    target = torch.randint(V, (6, 8), generator=torch.Generator().manual_seed(3))
    rows = torch.tensor([2, 2, 0, 3, 5, 4])  # three hypotheses a source
    with torch.no_grad():
        state = model.start_decoding(source, lengths)
        for i in range(5):
            model.decode_step(target[:, i], state)
        state.select(rows)
        steps = [model.decode_step(target[:, i], state) for i in range(5, 8)]
        mixed = torch.cat([target[rows, :5], target[:, 5:]], 1)
        sources = torch.arange(2).repeat_interleave(3)
        whole = model(source[sources], mixed, source_lengths=lengths[sources])
    torch.testing.assert_close(torch.stack(steps, 1), whole[:, 5:], rtol=1e-9, atol=1e-10)


@specs
@pytest.mark.parametrize("seed", [1, 2, 5])
def test_greedy_is_greedy(spec, seed):
    model, (source, lengths) = make(spec, seed), make_sources(seed=seed)
    found = greedy(model, source, lengths, **TOKENS, max_length=9)
    for i in range(len(source)):
        alone = source[i, : lengths[i]]
        expected = plain_greedy(model, alone, 9)
        assert tokens_of(found, i) == expected
        assert not (found.tokens[i, len(expected) :] != PAD).any()
        assert found.scores[i].item() == pytest.approx(total(model, alone, expected), rel=1e-9)
    assert torch.equal(found.scores, found.log_probabilities)


@specs
@pytest.mark.parametrize("seed", [1, 2, 5])
@pytest.mark.parametrize(("size", "exponent"), [(2, 0.0), (3, 1.0), (4, 0.6), (7, 2.0)])
@pytest.mark.pairwise
def test_beam_is_the_search_it_says(spec, seed, size, exponent):
    model, (source, lengths) = make(spec, seed), make_sources(seed=seed)
    options = {"max_length": 8, "beam_size": size, "length_penalty": exponent}
    found = beam(model, source, lengths, **TOKENS, **options)
    for i in range(len(source)):
        alone = source[i, : lengths[i]]
        score, tokens = plain_beam(model, alone, 8, size, exponent)
        assert tokens_of(found, i) == tokens
        assert found.scores[i].item() == pytest.approx(score, rel=1e-9)
        assert found.log_probabilities[i].item() == pytest.approx(
            total(model, alone, tokens), rel=1e-9
        )


@specs
@pytest.mark.parametrize("seed", range(6))
def test_beam_of_one_is_greedy(spec, seed):
    model, (source, lengths) = make(spec, seed), make_sources(seed=seed)
    one = beam(model, source, lengths, **TOKENS, max_length=12, beam_size=1)
    other = greedy(model, source, lengths, **TOKENS, max_length=12)
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.lengths, other.lengths)
    torch.testing.assert_close(one.log_probabilities, other.log_probabilities)


@specs
@pytest.mark.parametrize("search", [greedy, beam])
def test_batch_is_one_by_one(spec, search):
    model, (source, lengths) = make(spec), make_sources(8)
    limits = torch.tensor([9, 1, 4, 0, 20, 7, 7, 3])
    batch = search(model, source, lengths, **TOKENS, max_length=limits)
    for i in range(8):
        alone = search(
            model, source[i : i + 1, : lengths[i]], None, **TOKENS, max_length=int(limits[i])
        )
        assert tokens_of(batch, i) == tokens_of(alone, 0)
        assert batch.lengths[i] <= limits[i]
        torch.testing.assert_close(batch.scores[i], alone.scores[0], rtol=1e-9, atol=1e-12)


def test_all_hypotheses_make_an_exact_search():
    model, (source, _) = make(), make_sources(1)
    best = (-math.inf, [])
    for first in range(V):
        for second in [None] if first == EOS else range(V):
            tokens = [first] if second is None else [first, second]
            if tokens[-1] == EOS:
                best = max(best, (total(model, source[0], tokens), tokens))
    found = beam(model, source, **TOKENS, max_length=2, beam_size=V * V, length_penalty=0.0)
    assert tokens_of(found, 0) == best[1]
    assert found.scores[0].item() == pytest.approx(best[0])


@pytest.mark.parametrize("search", [greedy, beam])
def test_nothing_follows_the_end_and_frames_are_never_chosen(search):
    model, (source, lengths) = make(), make_sources(40)
    found = search(model, source, lengths, **TOKENS, max_length=30)
    assert len(set(found.lengths.tolist())) > 2
    for i in range(40):
        tokens = tokens_of(found, i)
        assert EOS not in tokens[:-1]
        assert tokens[-1] == EOS or len(tokens) == 30
        assert not {BOS, PAD} & set(tokens)
    assert found.tokens.shape[1] == found.lengths.max()


@pytest.mark.parametrize("search", [greedy, beam])
def test_search_stops_when_all_have_ended(search, monkeypatch):
    model, (source, lengths) = make(), make_sources(3, seed=2)
    steps = []
    step = model.decode_step
    monkeypatch.setattr(model, "decode_step", lambda *a: steps.append(1) or step(*a))
    found = search(model, source, lengths, **TOKENS, max_length=500)
    assert found.lengths.max() <= len(steps) < 60
    assert (search is beam) or len(steps) == found.lengths.max()


@pytest.mark.parametrize("search", [greedy, beam])
@specs
def test_empty_source_has_an_empty_translation(spec, search):
    model, (source, lengths) = make(spec), make_sources(3)
    lengths[1] = 0
    found = search(model, source, lengths, **TOKENS, max_length=6)
    assert found.lengths[1] == 0
    assert found.scores[1] == 0
    assert not found.tokens[1].any()
    assert found.scores.isfinite().all()
    for empty in (source[:, :0], source[:0]):
        nothing = search(model, empty, None, **TOKENS, max_length=6)
        assert nothing.tokens.shape == (len(empty), 0)
        assert not nothing.scores.any()


@pytest.mark.parametrize("search", [greedy, beam])
def test_search_leaves_the_model_as_it_was(search):
    model, (source, lengths) = make(dropout=0.5), make_sources(3)
    model.train()
    first, second = (search(model, source, lengths, **TOKENS, max_length=6) for _ in range(2))
    assert torch.equal(first.tokens, second.tokens)  # no dropout
    assert model.training
    assert not first.scores.requires_grad


@pytest.mark.parametrize("search", [greedy, beam])
def test_half_precision_decodes_too(search):
    model, (source, lengths) = make().float(), make_sources(3)
    exact = search(model, source, lengths, **TOKENS, max_length=6)
    with torch.autocast("cpu", torch.bfloat16):
        found = search(model, source, lengths, **TOKENS, max_length=6)
    assert found.scores.dtype == torch.float32
    torch.testing.assert_close(found.scores, exact.scores, rtol=0.3, atol=0.3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eos": 0}, "eos=0 must be two tokens of a vocabulary of 11"),
        ({"eos": BOS}, "bos=2 and eos=2"),
        ({"eos": 11}, "eos=11"),
        ({"max_length": -1}, "max_length=-1"),
        ({"max_length": torch.ones(3).long()}, r"max_length has shape \[3\], expected \[2\]"),
        ({"beam_size": 0}, "beam_size must be an integer >= 1. Got 0"),
        ({"length_penalty": "long"}, "length_penalty must be a number"),
    ],
)
def test_wrong_use_is_one_line(options, message):
    source, lengths = make_sources(2)
    with pytest.raises(InputError, match=message):
        beam(make(), source, lengths, **TOKENS | {"max_length": 5} | options)


def test_uneven_hypotheses_are_refused():
    model, (source, lengths) = make(), make_sources(2)
    state = model.start_decoding(source, lengths)
    with pytest.raises(InputError, match="3 hypotheses of 2 sources"):
        model.decode_step(torch.tensor([4, 4, 4]), state)
