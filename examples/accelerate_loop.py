"""A Flashpoint ViT trained by a loop of Accelerate, on the digits of scikit-learn.

    python examples/accelerate_loop.py
    accelerate launch --num_processes 2 examples/accelerate_loop.py

Accelerate moves the model, shares it between processes and saves it; nothing here knows how many
there are.

Needs: pip install '.[lab,hf]'
"""

import tempfile

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import flashpoint


def make_loaders() -> tuple[DataLoader, DataLoader]:
    """Batches to train on, and 297 images that nobody trains on."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16.0
    samples = TensorDataset(images, torch.tensor(digits.target))
    generator = torch.Generator().manual_seed(0)
    train, test = random_split(samples, [1500, 297], generator)
    return DataLoader(train, 64, shuffle=True, generator=generator), DataLoader(test, 256)


def train_epoch(
    accelerator: Accelerator, model: nn.Module, loader: DataLoader, optimizer: torch.optim.AdamW
) -> float:
    """One pass over the data; gives the last loss."""
    loss = torch.zeros(())
    for images, labels in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


@torch.no_grad()
def accuracy_of(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> float:
    """The share of correct answers, over all processes."""
    model.eval()
    found = [(model(images).argmax(-1), labels) for images, labels in loader]
    hits = [torch.eq(*accelerator.gather_for_metrics(pair)) for pair in found]
    return torch.cat(hits).float().mean().item()


def main() -> None:
    """Train for a few epochs, save the state, disturb the weights and take it up again."""
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    sizes = {"img_size": 8, "in_chans": 1, "patch_size": 2, "width": 32, "depth": 2}
    model = flashpoint.create_model("vit", **sizes, num_heads=4, num_classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    train, test = make_loaders()
    model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)
    losses = [train_epoch(accelerator, model.train(), train, optimizer) for _ in range(12)]
    before = accuracy_of(accelerator, model, test)
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)
        nn.init.zeros_(accelerator.unwrap_model(model).head.weight)
        accelerator.load_state(folder)
    after = accuracy_of(accelerator, model, test)
    accelerator.print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}")
    accelerator.print(f"accuracy on 297 digits: {before:.3f}, read again from disk: {after:.3f}")


if __name__ == "__main__":
    main()
