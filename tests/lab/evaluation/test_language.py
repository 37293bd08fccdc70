"""What language models are asked: losses, continuations under a judge, planted keys."""

import math

import numpy as np
import pytest
import torch
from caches import new_cache
from lab.training.language_runs import language_config, require_gpt2
from torch import nn

from flashpoint.errors import InputError
from flashpoint.lab.data.text.config import PiecesConfig
from flashpoint.lab.data.text.passages import open_passages
from flashpoint.lab.data.text.pieces import train_pieces
from flashpoint.lab.evaluation.language import (
    NUM_CANDIDATES,
    QUESTION,
    measure_all,
    measure_keys,
    measure_likelihood,
    measure_loss,
    open_test_text,
    plant_keys,
    take_prompts,
    write_on,
)
from flashpoint.lab.training.language import LanguageTask
from flashpoint.lab.training.ranks import Ranks

require_gpt2()


@pytest.fixture(scope="module", autouse=True)
def _shared_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHPOINT_CACHE", new_cache(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def text():
    config = language_config("data.length=128", "batch_size=512")
    pieces = train_pieces(open_passages("words:60", "train"), PiecesConfig(vocabulary_size=330))
    return open_test_text(config, pieces, None, "cpu")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = language_config("data.length=128", "batch_size=512", "model.attention=relu")
    return LanguageTask(config, Ranks()).build_model().eval()


class Says(nn.Module):
    """Gives each next token a logit by a rule of the tokens so far."""

    def __init__(self, rule, size=330):
        super().__init__()
        self.rule, self.size = rule, size

    def forward(self, input_ids, logits_to_keep=0, **_):
        logits = torch.zeros(*input_ids.shape, self.size)
        for row, ids in enumerate(input_ids.tolist()):
            for place in range(len(ids)):
                for token in self.rule(ids[: place + 1]):
                    logits[row, place, token] = 20.0
        return type("Output", (), {"logits": logits[:, -logits_to_keep:]})


def copies(ids):
    """What followed the last token when it came before: finds any planted key."""
    return [ids[n + 1] for n in range(len(ids) - 2) if ids[n - 1 : n + 1] == ids[-2:] and n]


def test_loss_is_that_of_all_test_tokens(text, model):
    even = measure_loss(Says(lambda ids: []), text)
    assert even["perplexity"] == pytest.approx(330)
    assert measure_loss(model, text)["loss"] == pytest.approx(math.log(330), rel=0.05)


def test_prompts_are_spread_over_the_text(text):
    rows = take_prompts(text, 3)
    assert rows.shape == (3, 128)
    assert rows[0].tolist() == text.ids[:128].tolist()
    assert rows[2].tolist() == text.ids[-129:-1].tolist()


def test_continuations_follow_from_the_seed_and_the_model(text, model):
    prompts = take_prompts(text, 3)[:, :32]
    written = write_on(model, prompts, 8, text)
    assert written.shape == (3, 40)
    assert written[:, :32].equal(prompts)
    assert written.equal(write_on(model, prompts, 8, text))
    assert not written.equal(write_on(model, prompts, 8, text, seed=1))


def test_cached_continuations_are_drawn_by_whole_rows_probabilities(text, model):
    """A model that is sure of its next token writes what it says of the whole row."""
    sure = LanguageTask(language_config("data.length=128", "batch_size=512"), Ranks())
    torch.manual_seed(0)
    found = sure.build_model().eval()
    with torch.no_grad():
        found.transformer.ln_f.weight.mul_(1e4)
    prompts = take_prompts(text, 2)[:, :16]
    written = write_on(found, prompts, 6, text)
    with torch.no_grad():
        said = found(input_ids=written).logits.argmax(-1)
    assert written[:, 16:].equal(said[:, 15:-1])


def test_likelihood_is_the_judge_s_mean_over_what_was_written(text):
    rows = take_prompts(text, 5)[:, :40]
    even = Says(lambda ids: [])
    assert measure_likelihood(even, rows, 30, text) == pytest.approx(-math.log(330))
    right = {tuple(row[: n + 1]): row[n + 1] for row in rows.tolist() for n in range(39)}
    knows = Says(lambda ids: [right[tuple(ids)]] if len(ids) >= 30 else [])
    assert measure_likelihood(knows, rows, 30, text) == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("distance", [0, 8, 40])
def test_keys_stand_at_their_distance_and_candidates_differ_in_nothing_else(text, distance):
    rows, size = plant_keys(text, distance, 3)
    assert rows.shape[:2] == (3, NUM_CANDIDATES)
    assert rows.shape[2] <= 128
    assert (rows[:, :, :-size] == rows[:, :1, :-size]).all()
    for candidates in rows:
        assert len({tuple(row[-size:].tolist()) for row in candidates}) == NUM_CANDIDATES
        said = text.pieces.decode(candidates[0].tolist())
        key = said.rpartition(" ")[2]
        plant = f"{QUESTION} {key}".strip()
        assert plant in said
        assert said.endswith(f"{QUESTION} {key}")
        asked = candidates[0][-size:].tolist()
        before = candidates[0][:-size].tolist()
        assert any(before[n : n + size] == asked for n in range(len(before)))  # token by token
        between = said[said.index(plant) + len(plant) : said.rindex(QUESTION)]
        assert len(text.pieces.encode([between])[0]) == pytest.approx(distance, abs=4)


def test_a_model_that_copies_finds_keys_and_one_that_guesses_does_not(text):
    assert measure_keys(Says(copies), text, 8, 6) == 1.0
    assert measure_keys(Says(lambda ids: []), text, 8, 6) == 0.0  # equals are no answer


def test_a_distance_beyond_the_row_is_refused(text):
    with pytest.raises(InputError, match=r"distance=127 must lie in \[0, \d+\]: a row has 128"):
        plant_keys(text, 127, 2)


def test_all_numbers_are_finite(text, model):
    found = measure_all(model, text, judge=model, distances=(4, 16), count=3)
    assert list(found) == ["loss", "perplexity", "likelihood", "key_4", "key_16", "keys"]
    assert np.isfinite(list(found.values())).all()
    assert "likelihood" not in measure_all(model, text)


def test_too_little_text_is_refused(text, tmp_path):
    for name in ("train", "val", "test"):
        (tmp_path / f"{name}.txt").write_text("the river.")
    with pytest.raises(InputError, match=r"has \d+ tokens to test on, less than two rows"):
        open_test_text(language_config(), text.pieces, str(tmp_path), "cpu")
