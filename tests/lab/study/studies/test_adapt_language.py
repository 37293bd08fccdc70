"""Language models converted and adapted, as evaluations of a finished trial."""

import pytest
from caches import new_cache
from lab.study.studies.outcomes import SMALL, SMOKE
from lab.training.language_runs import language_config, require_gpt2
from lab.training.runs import train_quietly

from flashpoint.errors import InputError
from flashpoint.lab.evaluation.language import NUM_CANDIDATES
from flashpoint.lab.study.evaluations import run_evaluation
from flashpoint.lab.study.studies.adapt_language import GUESS, STUDY

ASKED = {"distances": [4], "count": 2}
OWN = {"loss", "perplexity", "likelihood", "key_4", "keys"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    require_gpt2()
    out = tmp_path_factory.mktemp("language") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHPOINT_CACHE", new_cache(tmp_path_factory.mktemp("cache")))
        train_quietly(language_config("data.length=64"), out)
    return out


def test_softmax_is_asked_everything_and_the_others_about_themselves():
    by_word = {trial.factors["attention"]: trial.work.afterwards for trial in STUDY.plan(SMOKE)}
    assert [len(found) for found in by_word.values()] == [13, 1, 1]
    kinds = [evaluation.kind for evaluation in by_word["softmax"]]
    assert kinds == ["language", *4 * ["convert_language", "adapt_language", "adapt_language"]]
    assert [trial.factors["attention"] for trial in STUDY.plan(SMALL)][:3] == ["softmax"] * 3


def test_a_guess_is_among_the_keys_that_are_offered():
    assert GUESS == 1 / NUM_CANDIDATES


def test_a_model_is_asked_as_it_is_converted_and_adapted(run):
    to = {"attention": "relu", "layers": "every_second", **ASKED}
    assert set(run_evaluation("language", run, ASKED)) == {*OWN, "text"}
    found = run_evaluation("convert_language", run, to)
    assert set(found) == {f"{stage}_{n}" for stage in ("converted", "calibrated") for n in OWN}
    adapted = run_evaluation("adapt_language", run, {**to, "share": 0.05})
    assert set(adapted) == OWN
    assert run_evaluation("adapt_language", run, {**to, "share": 0.05}) == adapted


def test_wrong_options_are_refused(run):
    with pytest.raises(InputError, match="evaluation 'adapt_language' needs attention, share"):
        run_evaluation("adapt_language", run, {})
    with pytest.raises(InputError, match="needs ViT"):
        run_evaluation("classify", run, {})
