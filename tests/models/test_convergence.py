"""Tiny twins learn to copy and to reverse: model, gradients, caches and decoding as one."""

import pytest
import torch
import torch.nn.functional as F

from flashpoint.models.generation import greedy
from flashpoint.models.registry import create_model

BOS, EOS, FIRST, VOCABULARY = 2, 3, 4, 16
SHORTEST, LONGEST = 3, 6
STEPS, WARMUP, RATE, BATCH = 600, 50, 5e-3, 64


def make_words(count, length, generator):
    return torch.randint(FIRST, VOCABULARY, (count, length), generator=generator)


def train(model, is_reversed):
    """On batches of one length each, so that none has padding."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98), fused=True)
    for step in range(STEPS):
        rate = RATE * min(1, (step + 1) / WARMUP) * (1 - step / STEPS)
        for group in optimizer.param_groups:
            group["lr"] = rate
        length = int(torch.randint(SHORTEST, LONGEST + 1, (1,), generator=generator))
        source = make_words(BATCH, length, generator)
        answer = source.flip(1) if is_reversed else source
        logits = model(source, F.pad(answer, (1, 0), value=BOS))
        wanted = F.pad(answer, (0, 1), value=EOS)
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "is_reversed"),
    [("relu", True), ("softmax", True)],  # whoever reverses can copy
    ids=["relu-reverse", "softmax-reverse"],
)
def test_tiny_model_learns_to_copy_and_reverse(attention, is_reversed):
    torch.manual_seed(0)
    model = create_model("reluformer_tiny", vocabulary_size=VOCABULARY, attention=attention)
    train(model, is_reversed)
    generator = torch.Generator().manual_seed(2)
    lengths = torch.arange(SHORTEST, LONGEST + 1).repeat_interleave(100)
    words = [make_words(1, int(length), generator)[0] for length in lengths]
    source = torch.nn.utils.rnn.pad_sequence(words, batch_first=True)
    answers = [word.flip(0) if is_reversed else word for word in words]
    found = greedy(model, source, lengths, bos=BOS, eos=EOS, max_length=LONGEST + 4)
    right = [
        found.tokens[i, : found.lengths[i]].tolist() == [*answer.tolist(), EOS]
        for i, answer in enumerate(answers)
    ]
    assert sum(right) / len(right) > 0.99
