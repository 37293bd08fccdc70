"""Text models on a GPU: kernels for the penalty and for decoding, beside the CPU."""

import copy

import pytest
import torch
from implementations import needs_gpu

from flashpoint.models.generation import beam, greedy
from flashpoint.models.registry import create_model

pytestmark = [pytest.mark.gpu, needs_gpu]


SIZES = {  # heads of 16: fp32 kernels compile in a third of the time that 64 takes
    "vocabulary_size": 100,
    "width": 32,
    "num_heads": 2,
    "encoder_depth": 1,
    "decoder_depth": 1,
}


def make(attention="relu", **fields):
    torch.manual_seed(0)
    return create_model("reluformer_tiny", attention=attention, **SIZES | fields)


def make_batch(source_tokens=75, target_tokens=50):
    """Several tiles of keys, but few scores.

    The slope of r log r jumps at 0. Of 700,000 scores one was -9e-7: fp32 does not know its sign,
    and by that alone gradients of the penalty differ by 0.5%.
    """
    generator = torch.Generator().manual_seed(1)
    source, target = (
        torch.randint(100, (3, length), generator=generator)
        for length in (source_tokens, target_tokens)
    )
    lengths = [source_tokens, source_tokens // 2, 1], [target_tokens // 3, target_tokens, 5]
    return source, target, *map(torch.tensor, lengths)


def run(model, source, target, source_lengths, target_lengths):
    model.zero_grad()
    logits, penalty = model(
        source,
        target,
        source_lengths=source_lengths,
        target_lengths=target_lengths,
        with_penalty=True,
    )
    (logits.float().square().mean() + penalty).backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    numbers = [grad for grad in grads if grad.numel() == 1]  # errors of one alone are luck
    together = [torch.cat(numbers)] if numbers else []
    return [logits, penalty, *together, *(grad for grad in grads if grad.numel() > 1)]


def run_cast(model, batch, device, dtype):
    with torch.autocast(device, torch.bfloat16, enabled=dtype == torch.bfloat16):
        return run(copy.deepcopy(model).to(device), *(t.to(device) for t in batch))


def moved(model, eps, seed):
    """The model with each weight moved at random, by no more than rounding does."""
    generator, model = torch.Generator().manual_seed(seed), copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p *= 1 + eps * (torch.rand(p.shape, generator=generator) - 0.5)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("attention", ["relu", "softmax", "relu4/sum"])
def test_model_and_penalty_are_the_cpus(attention, dtype):
    """Within twice the error that the CPU makes at the same dtype, by norm.

    Signs of scores make that error a matter of luck: it is the largest of several computations.
    """
    model, batch = make(attention), make_batch()
    exact = run(copy.deepcopy(model).double(), *batch)
    found = run_cast(model, batch, "cuda", dtype)
    others = [moved(model, torch.finfo(dtype).eps, seed) for seed in range(16)]
    plain = [run_cast(other, batch, "cpu", dtype) for other in (model, *others)]
    assert len(found) == len(exact)
    for got, wanted, *at_hand in zip(found, exact, *plain, strict=True):
        error, *allowed = ((x.cpu().double() - wanted).norm() for x in (got, *at_hand))
        assert error <= 2.0 * max(allowed) + 1e-4 * wanted.norm() + 1e-6


@pytest.mark.parametrize("attention", ["relu", "softmax", "relu4/sum"])
def test_cached_steps_are_the_whole_model(attention):
    """Past 512 tokens, where one query has a kernel of its own, and past two buffers' ends."""
    model = make(attention, decoder_depth=2).cuda().eval()
    source, _, source_lengths, _ = make_batch(700)
    target = torch.randint(100, (3, 600), generator=torch.Generator().manual_seed(2))
    source, target, source_lengths = (t.cuda() for t in (source, target, source_lengths))
    with torch.no_grad():
        state = model.start_decoding(source, source_lengths)
        steps = [model.decode_step(target[:, i], state) for i in range(600)]
        whole = model(source, target, source_lengths=source_lengths)
    torch.testing.assert_close(torch.stack(steps, 1), whole, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("search", [greedy, beam])
def test_searches_are_the_cpus(search):
    model = make(tied_embeddings=False).eval()  # tied ones repeat a token
    source, _, source_lengths, _ = make_batch(40)
    options = {"bos": 2, "eos": 3, "max_length": 20}
    expected = search(model, source, source_lengths, **options)
    found = search(model.cuda(), source.cuda(), source_lengths.cuda(), **options)
    assert torch.equal(found.tokens.cpu(), expected.tokens)
    torch.testing.assert_close(found.scores.cpu(), expected.scores, rtol=1e-4, atol=1e-4)


def test_model_compiles_without_graph_break():
    torch._dynamo.reset()
    model, batch = make().cuda(), [t.cuda() for t in make_batch()]
    expected = run(model, *batch)
    found = run(torch.compile(model, fullgraph=True), *batch)
    for got, wanted in zip(found, expected, strict=True):
        assert (got - wanted).norm() <= 1e-3 * wanted.norm() + 1e-6
