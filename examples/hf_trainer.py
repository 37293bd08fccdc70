"""A Flashpoint ViT trained by Hugging Face's Trainer, on the digits of scikit-learn.

    python examples/hf_trainer.py

Trainer calls model(**batch) and reads "loss" and "logits" of what comes back; a module of ten
lines around the model gives it that.

Needs: pip install '.[lab,hf]'
"""

import tempfile

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import flashpoint


class Classifier(nn.Module):
    """Images and labels to loss and logits, as Trainer wants them."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """The loss too, where labels are given."""
        logits = self.backbone(images)
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def load_samples() -> list[dict[str, Tensor]]:
    """1,797 images of 8 x 8 pixels, shuffled."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16.0
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return [{"images": images[i], "labels": labels[i]} for i in order]


def main() -> None:
    """Train for a few epochs, then count correct answers."""
    torch.manual_seed(0)
    sizes = {"img_size": 8, "in_chans": 1, "patch_size": 2, "width": 32, "depth": 2}
    backbone = flashpoint.create_model(
        "vit", **sizes, num_heads=4, num_classes=10, drop_path_rate=0.05, attention="relu"
    )
    samples = load_samples()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            Classifier(backbone),
            TrainingArguments(
                folder,
                num_train_epochs=8,
                per_device_train_batch_size=64,
                per_device_eval_batch_size=256,
                learning_rate=5e-3,
                warmup_steps=20,
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=samples[:1500],
            eval_dataset=samples[1500:],
            compute_metrics=lambda p: {"accuracy": (p[0].argmax(-1) == p[1]).mean().item()},
        )
        trainer.train()
        print(f"accuracy on 297 digits: {trainer.evaluate()['eval_accuracy']:.3f}")


if __name__ == "__main__":
    main()
