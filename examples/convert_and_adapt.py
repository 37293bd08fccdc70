"""A softmax ViT brought to other attention: replaced, calibrated on a batch, fine-tuned, saved.

    python examples/convert_and_adapt.py     needs timm and scikit-learn; seconds on a CPU

Runs of `flashpoint train` have a command for it that also matches layers: `flashpoint adapt RUN`.
"""

import timm
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import flashpoint

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1  # [1797, 1, 8, 8]
labels = torch.tensor(digits.target)
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
training, test = order[:1437], order[1437:]


def make_model() -> torch.nn.Module:
    """Sixteen tokens of two by two pixels."""
    sizes = {"img_size": 8, "patch_size": 2, "embed_dim": 64, "depth": 2, "num_heads": 4}
    return timm.create_model("vit_tiny_patch16_224", num_classes=10, in_chans=1, **sizes)


def train(model: torch.nn.Module, num_steps: int, rate: float) -> None:
    """AdamW, its rate falling to zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    for _ in range(num_steps):
        some = training[torch.randint(len(training), (64,))]
        loss = F.cross_entropy(model.train()(images[some]), labels[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def show(what: str, model: torch.nn.Module) -> None:
    """Accuracy on images that no model was trained on."""
    right = (model.eval()(images[test]).argmax(1) == labels[test]).float().mean().item()
    print(f"{what:<24} {right:6.1%} right")


model = make_model()
train(model, 300, 4e-3)
show("softmax", model)
flashpoint.replace_attention(model, "relu")
show("replaced by relu", model)
# Batches in a list. Every head gets a gain, a bias and a scale.
report = flashpoint.replace_attention(model, "relu", calibrate=[images[training[:64]]])
show("calibrated", model)
train(model, 50, 1e-3)
show("fine-tuned for 50 steps", model)
print(report)

# Its state dict can be saved and loaded; it has the numbers, too, under NAME.substitute.
weights = model.state_dict()
again = make_model()
flashpoint.replace_attention(again, "relu", calibrate=weights)
again.load_state_dict(weights)
show("loaded again", again)
