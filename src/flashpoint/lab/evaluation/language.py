"""How good a language model is: its loss, what it writes, and whether it finds a planted key.

What a model writes is judged by a teacher: the mean log-likelihood of its tokens. Sampled text is
right if the teacher could have written it, so the teacher's own text by the same rule stands
beside it.

Shapes: B rows, P tokens of a prompt, L tokens of a row, V pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashpoint.errors import InputError
from flashpoint.lab.data.text.blocks import BlockEvalBatches, encode_passages, take_blocks
from flashpoint.lab.data.text.passages import open_passages, split_off
from flashpoint.lab.data.text.pieces import Pieces
from flashpoint.lab.data.text.tokens import Ids
from flashpoint.lab.training.language import LossSums, token_losses
from flashpoint.lab.training.language_model import autocast, logits_of
from flashpoint.shapes import Int

NUM_CANDIDATES = 8
"""Keys among which the planted one must have the highest likelihood: a guess finds an eighth."""
QUESTION, END = "\nThe access code is", "\n"
"""What stands before a key, planted or asked for, and behind a planted one."""
_KEYS_DRAWN = 400
"""Numbers of five digits, of which those with the usual number of tokens are keys."""


@dataclass(frozen=True)
class TestText:
    """Passages that no model was trained on, as tokens, and how models are asked about them.

    Attributes:
        ids: of all passages, [T].
        pieces: what the tokens are.
        length: tokens of a row.
        rows: at a time.
        precision: "bf16" or "fp32", as in training.
        device: of the models.
    """

    __test__ = False  # pytest takes the name for its own

    ids: Ids
    pieces: Pieces
    length: int
    rows: int
    precision: str
    device: torch.device


def open_text(config: Any, pieces: Pieces, where: str, split: str, device: Any) -> TestText:
    """A split of some passages, for the models of a language run."""
    ids = encode_passages(open_passages(where, split), pieces)
    length = config.data.length
    rows = max(1, config.batch_size // length)
    return TestText(ids, pieces, length, rows, config.precision, torch.device(device))


def open_test_text(config: Any, pieces: Pieces, data: str | None, device: Any) -> TestText:
    """The test passages of a language run's data, or of another place."""
    where = split_off(config.data.validation) if data is None else data
    text = open_text(config, pieces, where, "test", device)
    if len(text.ids) < 2 * text.length:
        raise InputError(
            f"{where} has {len(text.ids)} tokens to test on, less than two rows of data.length="
            f"{text.length}. Give more text."
        )
    return text


@torch.no_grad()
def measure_loss(model: Any, text: TestText) -> dict[str, float]:
    """Loss in nats, and perplexity, of all tokens."""
    sums = LossSums(text.device)
    batches = BlockEvalBatches(text.ids, length=text.length, rows=text.rows, device=text.device)
    with autocast(text.device, text.precision):
        for inputs, targets in batches.iterate():
            sums.add(logits_of(model, inputs), targets)
    return sums.numbers()


def take_prompts(text: TestText, count: int) -> Int[Tensor, "B L"]:
    """Rows from places that are evenly spread: prompts, with what follows them in the text."""
    starts = np.linspace(0, len(text.ids) - text.length - 1, count).astype(np.int64)
    ids = torch.from_numpy(text.ids.astype(np.int32)).to(text.device)
    return take_blocks(ids, starts, text.length)[0]


@torch.no_grad()
def write_on(
    model: Any, prompts: Int[Tensor, "B P"], count: int, text: TestText, seed: int = 0
) -> Int[Tensor, "B L"]:
    """Prompts with so many tokens behind them, each drawn by the model's own probabilities."""
    from transformers import DynamicCache

    generator = torch.Generator(text.device).manual_seed(seed)
    cache: Any = DynamicCache()
    rows, new = [prompts], prompts
    with autocast(text.device, text.precision):
        for _ in range(count):
            found = model(
                input_ids=new, past_key_values=cache, use_cache=True, logits_to_keep=1
            ).logits
            chances = found[:, -1].float().nan_to_num().softmax(-1)  # what diverged draws anything
            new = torch.multinomial(chances, 1, generator=generator)
            rows.append(new)
    return torch.cat(rows, 1)


@torch.no_grad()
def measure_likelihood(judge: Any, rows: Int[Tensor, "B L"], first: int, text: TestText) -> float:
    """The judge's mean log-likelihood of the tokens from place ``first`` on."""
    losses: list[Tensor] = []
    with autocast(text.device, text.precision):
        for part in rows.split(text.rows):
            logits = logits_of(judge, part[:, :-1], logits_to_keep=part.shape[1] - first)
            losses.append(token_losses(logits, part[:, first:]).double())
    return -float(torch.cat(losses).mean())


@torch.no_grad()
def measure_keys(model: Any, text: TestText, distance: int, count: int, seed: int = 0) -> float:
    """How often a planted key is the likeliest of some, where real text lies between.

    Args:
        model: is asked.
        text: what keys are planted in.
        distance: tokens of the text between the planted sentence and the question.
        count: keys to plant, each in another place of the text.
        seed: of the keys.
    """
    rows, num_key_tokens = plant_keys(text, distance, count, seed)
    scores: list[Tensor] = []
    with autocast(text.device, text.precision):
        for part in rows.flatten(0, 1).split(text.rows):
            logits = logits_of(model, part[:, :-1], logits_to_keep=num_key_tokens)
            scores.append(-token_losses(logits, part[:, -num_key_tokens:]).sum(-1))
    found = torch.cat(scores).view(rows.shape[:2]).nan_to_num(-torch.inf)  # [count, candidates]
    is_right = (found[:, :1] > found[:, 1:]).all(1)
    return float(is_right.double().mean())


def plant_keys(
    text: TestText, distance: int, count: int, seed: int = 0
) -> tuple[Int[Tensor, "B K L"], int]:
    """Rows that end with a question and a key: the planted one first, then others; its tokens."""
    rng = np.random.default_rng((seed, distance))
    keys = _draw_keys(text.pieces, rng)
    question, end = text.pieces.encode([QUESTION, END])
    size = len(keys[0])
    rows: list[list[int]] = []
    room = text.length - 2 * (len(question) + size) - len(end)
    if not 0 <= distance <= room:
        raise InputError(
            f"distance={distance} must lie in [0, {room}]: a row has {text.length} tokens, and "
            f"the planted sentence and the question take {text.length - room}."
        )
    starts = np.linspace(0, len(text.ids) - room, count).astype(np.int64)
    for start in starts.tolist():
        filler = text.ids[start : start + room].tolist()
        chosen = rng.choice(len(keys), NUM_CANDIDATES, replace=False)
        plant = [*question, *keys[chosen[0]], *end]  # the very tokens that are asked for
        before = [*filler[: room - distance], *plant, *filler[room - distance :], *question]
        rows += [[*before, *keys[n]] for n in chosen]
    tensor = torch.tensor(rows, device=text.device)
    return tensor.view(count, NUM_CANDIDATES, -1), size


def _draw_keys(pieces: Pieces, rng: np.random.Generator) -> list[list[int]]:
    """Tokens of numbers behind the question, all with the same number of tokens."""
    drawn = rng.choice(90_000, _KEYS_DRAWN, replace=False) + 10_000
    words = [str(number) for number in drawn.tolist()]
    start = len(pieces.encode([QUESTION])[0])
    found = pieces.encode([f"{QUESTION} {word}" for word in words])
    tokens = [ids[start:] for ids in found]
    sizes = [len(ids) for ids in tokens]
    usual = max(set(sizes), key=sizes.count)
    return [ids for ids in tokens if len(ids) == usual]


def measure_all(
    model: Any,
    text: TestText,
    *,
    judge: Any = None,
    distances: Sequence[int] = (),
    count: int = 64,
) -> dict[str, float]:
    """Loss, likelihood under a judge, and planted keys by distance, as flat numbers.

    | number | what |
    |---|---|
    | loss, perplexity | of the test passages |
    | likelihood | log-likelihood per token, under the judge, of what the model writes |
    | key_D, keys | planted keys found over D tokens, and their mean |

    Args:
        model: is asked, in eval mode.
        text: about this.
        judge: a softmax model; None judges nothing.
        distances: of planted keys.
        count: prompts to write on, and keys to plant at each distance.
    """
    found = measure_loss(model, text)
    if judge is not None:
        first = text.length // 2
        prompts = take_prompts(text, count)[:, :first]
        written = write_on(model, prompts, text.length // 4, text)
        found["likelihood"] = measure_likelihood(judge, written, first, text)
    keys = {f"key_{far}": measure_keys(model, text, far, count) for far in distances}
    mean = {"keys": sum(keys.values()) / len(keys)} if keys else {}
    return {**found, **keys, **mean}
