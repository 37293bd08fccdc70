"""A Hugging Face model whose tokens lie on several processes, trained as on one.

    torchrun --nproc-per-node 2 examples/hugging_face_sequence_parallel.py

A tiny Llama with random weights, so that nothing is downloaded. Its attention is pointwise, by
name; inside ``with attend:`` it goes over the ranks. Each rank has a run of tokens with their
positions, and no cache. The model adds up nothing over tokens but in attention, so that its code
stays as it is. Labels are shifted before the cut: the next token may lie on the next rank.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from flashpoint.convert.transformers import register
from flashpoint.distributed import sequence_parallel, shard

TOKENS, WORDS, STEPS = 64, 32, 20


def make_model() -> LlamaForCausalLM:
    """The same weights on all ranks; four query heads on two of keys and values."""
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 128}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, **heads, max_position_embeddings=TOKENS, use_cache=False)
    config._attn_implementation = "pointwise_relu4_sum"
    return LlamaForCausalLM(config)


def make_batch() -> tuple[Tensor, Tensor, Tensor]:
    """Words, their positions and the word behind each, [B, L]: the same on all ranks."""
    words = torch.randint(WORDS, (4, TOKENS + 1), generator=torch.Generator().manual_seed(0))
    return words[:, :-1], torch.arange(TOKENS).expand(4, -1), words[:, 1:]


def loss_of(model: LlamaForCausalLM, words: Tensor, positions: Tensor, said: Tensor) -> Tensor:
    """This rank's share of the mean over all tokens."""
    scores = model(input_ids=words, position_ids=positions, use_cache=False).logits
    return F.cross_entropy(scores.flatten(0, 1), said.flatten(), reduction="sum") / (4 * TOKENS)


def main() -> None:
    """Compare the first step with one process, then learn one batch by heart."""
    dist.init_process_group("gloo")
    register()
    attend = sequence_parallel(strategy="ring")
    alone, model = make_model(), make_model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    whole = make_batch()
    for step in range(STEPS):
        with attend:
            loss = loss_of(model, *map(shard, whole))
        optimizer.zero_grad()
        loss.backward()
        for x in (loss.detach(), *(p.grad for p in model.parameters())):
            dist.all_reduce(x)
        if step == 0:
            loss_of(alone, *whole).backward()
            pairs = zip(model.parameters(), alone.parameters(), strict=True)
            error = max((a.grad - b.grad).abs().max().item() for a, b in pairs)
        optimizer.step()
        if dist.get_rank() == 0 and step in (0, STEPS - 1):
            print(f"step {step}: loss {loss:.3f}")
    if dist.get_rank() == 0:
        print(f"largest difference of a gradient to one process: {error:.1e}")
        print(f"elements that this rank sent: {attend.transport.sent:,}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
