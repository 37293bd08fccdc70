"""The suite ``loader``: what is measured, and what it leaves behind."""

import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from flashpoint.lab.bench.environment import Environment, describe
from flashpoint.lab.bench.loader.feeds import FEEDS, images_per_s
from flashpoint.lab.bench.loader.photographs import write_shards
from flashpoint.lab.bench.loader.steps import AUGMENTATION, make_task, step_rates
from flashpoint.lab.data.config import DataConfig

LEAST_SHARE = 0.95
"""Of the rate with images on the GPU, that a run from shards must reach."""

_CACHE = "FLASHPOINT_CACHE"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderCase:
    """What is measured.

    Attributes:
        model: that is trained.
        batch_size: images of a step.
        image_size: their height and width.
        num_images: of the shards.
        num_different: of these; the others are copies.
        workers: processes that read.
        seconds: of each measurement.
    """

    device: str
    model: str
    batch_size: int
    image_size: int
    num_images: int
    num_different: int
    workers: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderResult:
    """All rates in images a second.

    Attributes:
        feeds: by who reads; None where it is not installed.
        bytes_per_image: of the JPEG files, on average.
        resident: of training steps on images that stay on the device.
        fed: of training steps on images from the shards.
        data_wait: the share of time that these waited.
    """

    case: LoaderCase
    environment: Environment
    feeds: dict[str, float | None]
    bytes_per_image: float
    resident: float
    fed: float
    data_wait: float

    @property
    def share(self) -> float:
        """What arrives of the rate with images on the device."""
        return self.fed / self.resident


def usual_case(device: str, *, is_quick: bool) -> LoaderCase:
    """S/16 on a GPU, with every core reading; on a CPU a small model that shows it works."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    case = LoaderCase(
        device=device,
        model="vit_s16",
        batch_size=1024,
        image_size=224,
        num_images=16_384,
        num_different=1024,
        workers=cores or 1,
        seconds=10.0,
    )
    if device == "cpu":
        small = {"model": "vit_ti16", "batch_size": 8, "num_images": 64, "num_different": 16}
        return replace(case, **small, seconds=0.5 if is_quick else 5.0)
    return replace(case, seconds=3.0) if is_quick else case


def measure_loader(case: LoaderCase, report: Callable[[str], None]) -> LoaderResult:
    """Write shards into a temporary folder, read them in every way, and train on them."""
    device = torch.device(case.device)
    with _folder() as folder:
        report("write shards")
        write_shards(folder, case.num_images, case.num_different, case.workers)
        size = sum(file.stat().st_size for file in folder.glob("train-*.tar"))
        config = DataConfig(
            train=f"shards:{folder}/train-*.tar",
            validation=f"shards:{folder}/val-*.tar",
            image_size=case.image_size,
            workers=case.workers,
            decode="auto",
            augmentation=AUGMENTATION,
        )
        feeds: dict[str, float | None] = {}
        for name in FEEDS:
            report(f"read: {name}")
            feeds[name] = _feed_rate(name, config, case, device)
        report(f"train {case.model}")
        task = make_task(case.model, case.batch_size, config, device)
        resident, fed, wait = step_rates(task, device, case.seconds)
    return LoaderResult(
        case=case,
        environment=describe(case.device),
        feeds=feeds,
        bytes_per_image=size / case.num_images,
        resident=resident,
        fed=fed,
        data_wait=wait,
    )


def _feed_rate(
    name: str, config: DataConfig, case: LoaderCase, device: torch.device
) -> float | None:
    """Of one feed; None if a package is missing."""
    try:
        sizes = FEEDS[name](config, case.batch_size, device)
    except ImportError:
        return None
    return images_per_s(sizes, device, warm_s=case.seconds / 2, seconds=case.seconds)


@contextmanager
def _folder() -> Generator[Path]:
    """For shards and their index, gone afterwards."""
    before = os.environ.get(_CACHE)
    with tempfile.TemporaryDirectory(prefix="flashpoint-loader-") as name:
        os.environ[_CACHE] = f"{name}/cache"
        try:
            yield Path(name)
        finally:
            del os.environ[_CACHE]
            if before is not None:
                os.environ[_CACHE] = before
