"""Examples of our own models in other people's training run, and learn what they say."""

import re
import runpy
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]


def run(name, capsys):
    """What an example prints; here, since timm's import wants what the fixtures do."""
    start = time.process_time()
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert time.process_time() - start < SECONDS
    assert len((EXAMPLES / name).read_text().splitlines()) <= 80
    return capsys.readouterr().out


def accuracies(shown):
    return [float(found) for found in re.findall(r"(?:digits|disk): (\d\.\d+)", shown)]


def test_trainer_trains_our_vit(transformers, capsys):
    (accuracy,) = accuracies(run("hf_trainer.py", capsys))
    assert accuracy > 0.85


def test_accelerate_trains_our_vit_and_reads_it_again(transformers, capsys):
    before, after = accuracies(run("accelerate_loop.py", capsys))
    assert before == after > 0.85


def test_timm_creates_and_trains_our_vit(timm, capsys):
    shown = run("own_vit_in_timm.py", capsys)
    (accuracy,) = accuracies(shown)
    assert accuracy > 0.85
    assert "12 models, as flashpoint_vit_b8" in shown
    assert "maps of the first and last block: [(1, 32, 4, 4), (1, 32, 4, 4)]" in shown
    assert "with a new head: (1, 5)" in shown
    assert "features only: [(1, 32, 4, 4), (1, 32, 4, 4)]" in shown
