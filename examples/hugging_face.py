"""Pointwise attention in Hugging Face's models: by name, and layer by layer.

A tiny GPT-2 with random weights, so that nothing is downloaded; "gpt2" and others serve alike.

    python examples/hugging_face.py

A GPT-2 that was trained with softmax is brought to other attention by
`flashpoint adapt FOLDER --data passages:DIR --steps N`.
"""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

import flashpoint
from flashpoint.convert.transformers import register


def make_checkpoint(folder: str) -> None:
    """A model on disk, as it comes from the Hub."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 128, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 128}
    other = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.2}
    GPT2LMHeadModel(GPT2Config(**sizes, **other)).save_pretrained(folder)


def generate(model: PreTrainedModel) -> list[list[int]]:
    """Eight tokens after each of two prompts, the second padded on the left."""
    prompts = torch.tensor([[5, 17, 42, 99, 7], [0, 0, 64, 23, 11]])
    options = {"max_new_tokens": 8, "do_sample": False}
    tokens = model.generate(prompts, attention_mask=(prompts > 0).long(), **options)
    return tokens[:, prompts.shape[1] :].tolist()


def train(model: PreTrainedModel, steps: int = 20) -> tuple[float, float]:
    """The first and last loss on one batch."""
    tokens = torch.randint(3, 128, (4, 32), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []
    for _ in range(steps):
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses[0], losses[-1]


def main() -> None:
    """Load by name, generate, make a hybrid, train it."""
    names = register()  # attention and mask functions, in every process that needs them
    print(f"{len(names)} names, as {names[1]} and pointwise_relu4_sum")
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(folder)
        load = GPT2LMHeadModel.from_pretrained
        model = load(folder, attn_implementation="pointwise_relu4_sum")
        print("relu4/sum by name:", generate(model)[0])
        model.set_attn_implementation("sdpa")
        print("softmax:          ", generate(model)[0])

        # GPT-2 drops attention weights in training; pointwise attention keeps none to drop.
        hybrid = load(folder, attn_pdrop=0.0)
        print(flashpoint.replace_attention(hybrid, "relu4/sum", layers=slice(1, None, 2)))
        print("hybrid:           ", generate(hybrid)[0])
        first, last = train(hybrid.train())
        print(f"loss of the hybrid {first:.2f}, after 20 steps {last:.2f}")
        print(flashpoint.restore_attention(hybrid), "modules restored")


if __name__ == "__main__":
    main()
