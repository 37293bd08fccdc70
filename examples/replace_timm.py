"""A model of timm's with another attention inside: trained with softmax, replaced, fine-tuned.

    python examples/replace_timm.py          needs timm; a few seconds on a CPU

The toy task: which color has the one bright patch of a noisy image? With a pretrained model the
calls are the same: timm.create_model(name, pretrained=True), then replace_attention.
"""

import timm
import torch
import torch.nn.functional as F

import flashpoint

torch.manual_seed(0)


def batch(count: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images with one patch of 8 x 8 pixels that is red, green or blue, and its color."""
    images, colors = torch.randn(count, 3, 32, 32), torch.randint(3, (count,))
    rows, columns = 8 * torch.randint(4, (2, count))
    for image, color, row, column in zip(images, colors, rows, columns, strict=True):
        image[color, row : row + 8, column : column + 8] += 0.7
    return images, colors


def train(model: torch.nn.Module, num_steps: int) -> None:
    """AdamW at one rate."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(num_steps):
        images, labels = batch()
        loss = F.cross_entropy(model.train()(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def show(what: str) -> None:
    """The share of images whose color is found."""
    images, labels = batch(512)
    right = (model.eval()(images).argmax(1) == labels).float().mean().item()
    print(f"{what:<34} {right:.0%} right")


sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4}
model = timm.create_model("vit_tiny_patch16_224", num_classes=3, **sizes)
train(model, 80)
show("softmax, 80 steps")
print(flashpoint.replace_attention(model, "relu", layers=slice(None, None, 2)))
show("every second layer replaced")
flashpoint.replace_attention(model, "relu")
show("all layers replaced")
flashpoint.restore_attention(model)
show("restored")
flashpoint.replace_attention(model, "relu")
train(model, 20)  # parameters are the model's own, so training just goes on
show("all layers replaced, 20 steps more")
