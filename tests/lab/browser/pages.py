"""Pages of twins that were trained for a moment, on digits and on pictures of two colors."""

import base64
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from lab.data.pictures import encoded, noise
from lab.evaluation.trained import trained_run
from PIL import Image

from flashpoint.errors import UnsupportedError
from flashpoint.lab.browser.contents import Contents, Opened, gather
from flashpoint.lab.browser.graphs import WithWeights
from flashpoint.lab.browser.page import build_page
from flashpoint.lab.browser.runtime import read_runtime
from flashpoint.lab.cli.run_arguments import open_classifier
from flashpoint.lab.report.page import write_page
from flashpoint.lab.training import config_file
from flashpoint.lab.training.loop import train

TWINS = ("relu", "softmax")


@dataclass(frozen=True)
class Made:
    """A page and what it was made of."""

    file: Path
    contents: Contents
    models: list[Opened]

    def sample(self, number):
        """Pixels of an image to click, uint8 [C, S, S]."""
        facts = self.contents.facts
        content = base64.b64decode(facts["samples"][number]["pixels"])
        shape = (facts["channels"], facts["image_size"], facts["image_size"])
        return np.frombuffer(content, np.uint8).reshape(shape)

    def expected(self, pixels):
        """For each model its class and its weights [layers, H, L, L], by PyTorch."""
        image = torch.from_numpy(pixels.astype(np.float32) / 127.5 - 1)[None]
        found = []
        for opened in self.models:
            with torch.no_grad():
                logits, weights = WithWeights(opened.model)(image)
            best = self.contents.facts["classes"][int(logits.argmax())]
            found.append((best, weights[0].numpy()))
        return found


def make_page(runs, file):
    """The page of these runs, with the real runtime; where npm cannot get it, a skip."""
    try:
        runtime = read_runtime()
    except UnsupportedError as error:
        give_up = pytest.fail if os.environ.get("FLASHPOINT_REQUIRE_BROWSER") else pytest.skip
        give_up(str(error))
    opened = [open_classifier(run, "best", "cpu") for run in runs]
    models = [Opened(run=run, model=model, step=step) for run, model, step in opened]
    contents = gather(models, num_samples=4)
    write_page(build_page("<Twins>", contents, runtime), file)
    return Made(file, contents, models)


def wait_for_texts(page, selector, wanted):
    """Until the elements have these texts; by locators, for the page's policy forbids eval."""
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_have_text(wanted)


def digit_runs():
    return [trained_run(name) for name in TWINS]


def color_runs(folder):
    """Reddish and bluish noise in class folders, and twins with a class token."""
    for name, tint in (("blue", (0.3, 0.3, 1.0)), ("red", (1.0, 0.3, 0.3))):
        (folder / "pictures" / name).mkdir(parents=True)
        for number in range(20):
            image = Image.fromarray((np.asarray(noise(seed=number)) * tint).astype(np.uint8))
            (folder / "pictures" / name / f"{number}.png").write_bytes(encoded(image))
    return [_train_on_colors(folder, attention) for attention in TWINS]


def _train_on_colors(folder, attention):
    values = {
        "model": {
            **{"name": "vit", "patch_size": 4, "width": 32, "depth": 1, "num_heads": 2},
            **{"mlp_dim": 32, "attention": attention, "pool": "token"},
        },
        "data": {
            **{"train": str(folder / "pictures"), "validation": str(folder / "pictures")},
            **{"image_size": 16, "channels": 3, "workers": 0},
        },
        **{"steps": 10, "batch_size": 16, "precision": "fp32", "device": "cpu"},
        **{"optimizer": {"lr": 3e-3}},
    }
    train(config_file.parse(values), folder / attention)
    return folder / attention
