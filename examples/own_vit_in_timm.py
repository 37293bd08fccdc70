"""Flashpoint's ViT by timm's create_model, trained with timm's tools on scikit-learn's digits.

    python examples/own_vit_in_timm.py

Needs: pip install '.[lab,timm]'
"""

import timm
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch import Tensor, nn

from flashpoint.models.timm_registry import register_with_timm

EPOCHS = 12


def load_images() -> tuple[Tensor, Tensor]:
    """1,797 images of 8 x 8 pixels and their digits, shuffled."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16.0
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order], torch.tensor(digits.target)[order]


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """timm's optimizer with layer-wise rates, and its cosine schedule."""
    options = {"weight_decay": 0.05, "layer_decay": 0.9}
    optimizer = create_optimizer_v2(model, opt="adamw", lr=5e-3, **options)
    schedule = CosineLRScheduler(optimizer, t_initial=EPOCHS, warmup_t=2, warmup_lr_init=1e-4)
    for epoch in range(EPOCHS):
        schedule.step(epoch)
        for rows in torch.randperm(len(images)).split(64):
            loss = F.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.no_grad()
def main() -> None:
    """Train, count correct answers, and look at features and another head."""
    torch.manual_seed(0)
    print(len(register_with_timm()), "models, as", timm.list_models("flashpoint_*")[0])
    (name,) = register_with_timm("vit_ti2")  # any patch size has a name
    sizes = {"img_size": 8, "in_chans": 1, "width": 32, "depth": 2, "num_heads": 4}
    settings = sizes | {"attention": "relu4/sum"}
    model = timm.create_model(name, **settings, num_classes=10, drop_path_rate=0.1)
    images, labels = load_images()
    with torch.enable_grad():
        train(model.train(), images[:1500], labels[:1500])
    right = model.eval()(images[1500:]).argmax(-1) == labels[1500:]
    print(f"accuracy on {len(right)} digits: {right.float().mean():.3f}")

    _, maps = model.forward_intermediates(images[:1], indices=[0, -1])
    print("maps of the first and last block:", [tuple(x.shape) for x in maps])
    model.reset_classifier(5)
    print("with a new head:", tuple(model(images[:1]).shape))
    features = timm.create_model(name, **settings, features_only=True, out_indices=(0, 1))
    print("features only:", [tuple(x.shape) for x in features(images[:1])])


if __name__ == "__main__":
    main()
