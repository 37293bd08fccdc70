"""Whole models: a training step of a ViT with relu beside its softmax twin, and timm's own ViT.

It is what users feel: attention and its norms are a part of a step only. The step is that of
``flashpoint train``: forward, loss, backward, clipping and AdamW, in bf16 autocast, the model
compiled on a GPU. Images are random and stay where they are.

timm's model has the same sizes, norms of q and k (with biases, where ours have none), no class
token and the same pooling, so that its tokens are as many.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from flashpoint.errors import UnsupportedError
from flashpoint.lab.bench.device import timer_for
from flashpoint.lab.bench.failure import Refused, attempt
from flashpoint.lab.bench.memory import peak_on_cuda
from flashpoint.lab.bench.result import ModelMeasurement, ModelRow
from flashpoint.lab.bench.suites import (
    MODEL_LIMITS,
    OUR_TWIN,
    RIVAL_TWIN,
    TIMM,
    WHOLE_MODELS,
    ModelCase,
)
from flashpoint.lab.bench.timing import Budget, Started, interleave, start
from flashpoint.lab.training.config import ModelConfig, TrainConfig
from flashpoint.lab.training.optimizer import make_optimizer
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.sharing import Shared
from flashpoint.lab.training.step import Step
from flashpoint.lab.training.vision import cross_entropy
from flashpoint.models.registry import model_config
from flashpoint.models.vit import ViT, ViTConfig

RATE = 1e-3


class RandomImages:
    """To be classified; as much of a task as a step asks for."""

    def __init__(self, case: ModelCase) -> None:
        name = ModelConfig(name=case.model)
        self.config = TrainConfig(model=name, steps=1, batch_size=case.batch)

    def loss(self, forward: Callable[..., Tensor], batch: tuple[Tensor, ...]) -> Tensor:
        """Mean cross-entropy."""
        images, targets = batch
        return cross_entropy(forward(images), targets, "softmax").mean()


def make_step(case: ModelCase, attention: str) -> Callable[[], None]:
    """A step of one twin, or of timm's model, on a batch of its own."""
    task = RandomImages(case)
    torch.manual_seed(0)
    settings = {"image_size": case.image_size, "qk_norm": "layer"}
    function = RIVAL_TWIN if attention == TIMM else attention
    config = model_config(case.model, attention=function, **settings)
    assert isinstance(config, ViTConfig)
    ranks = Ranks(device=torch.device(case.device))
    model = timm_model(config) if attention == TIMM else ViT(config)
    shared = Shared(model, ranks, compiled=case.device == "cuda")
    optimizer = make_optimizer(shared.module, task.config.optimizer, ranks.device, captured=False)
    step = Step(task, shared, optimizer)
    step.set_rate(RATE)
    generator = torch.Generator(case.device).manual_seed(0)
    sizes = (case.batch, 3, case.image_size, case.image_size)
    images = torch.randn(sizes, device=case.device, generator=generator)
    labels = torch.arange(case.batch) % config.num_classes
    targets = torch.eye(config.num_classes)[labels].to(case.device)
    return lambda: step((images, targets))


def timm_model(config: ViTConfig) -> nn.Module:
    """timm's vision transformer with the sizes of ours; refused where timm is not installed."""
    if find_spec("timm") is None:
        raise UnsupportedError("timm is not installed; pip install timm")
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_ratio=config.mlp_dim / config.width,
        qk_norm=True,
        class_token=False,
        global_pool="avg",
        fc_norm=False,
    )


def measure_model(
    case: ModelCase, budget: Budget, report: Callable[[str], None], *, has_memory: bool
) -> ModelRow:
    """Time the twins and timm's in turns, then look at the memory of each if asked for."""
    timer = timer_for(case.device)
    started: dict[str, Started] = {}
    found: dict[str, ModelMeasurement] = {}
    torch.compiler.reset()
    for attention in WHOLE_MODELS:
        report(f"{case}: compile {attention}")
        try:
            started[attention], _ = attempt(
                lambda name=attention: start(make_step(case, name), timer, compiles=True),
                is_ours=attention == OUR_TWIN,
            )
        except Refused as refused:
            found[attention] = ModelMeasurement(attention=attention, skipped=str(refused))
    report(f"{case}: time")
    for attention, timing in interleave(started, budget, timer).items():
        found[attention] = ModelMeasurement(attention=attention, timing=timing)
    if has_memory and case.device == "cuda":
        for attention, (step, _) in started.items():
            found[attention] = replace(found[attention], peak=peak_on_cuda(step))
    measurements = tuple(found[attention] for attention in WHOLE_MODELS)
    return ModelRow(case=case, limits=MODEL_LIMITS.get(case, ()), measurements=measurements)
