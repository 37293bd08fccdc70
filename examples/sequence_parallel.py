"""A causal model whose tokens lie on several processes, trained as on one.

    torchrun --nproc-per-node 2 examples/sequence_parallel.py

Every rank holds a part of each sequence. Norms and losses are by token and know nothing of it;
attention gets another ``attend``. Gradients of the weights are added up over ranks.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from flashpoint.distributed import sequence_parallel, shard
from flashpoint.layers import Attention

TOKENS, WORDS, BACK, WIDTH, STEPS = 96, 16, 5, 32, 150


class Model(nn.Module):
    """Says which word stood BACK tokens before each one."""

    def __init__(self, **attend) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.attention = Attention(WIDTH, 4, "relu4/sum", **attend)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        """Scores of words, [B, L, WORDS], from words and their places in the sequence, [B, L]."""
        x = self.words(words) + self.places(places)
        return self.head(self.norm(x + self.attention(x, causal=True)))


def make_batch(step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Words, places and what to say, whole sequences: the same on all ranks."""
    generator = torch.Generator().manual_seed(step)
    words = torch.randint(WORDS, (8, TOKENS), generator=generator)
    places = torch.arange(TOKENS).expand(8, -1)
    said = words.roll(BACK, 1)
    said[:, :BACK] = -100  # nothing is asked there
    return words, places, said


def loss_of(model: nn.Module, words: Tensor, places: Tensor, said: Tensor) -> Tensor:
    """This rank's share: its shares add up to the mean over all tokens."""
    total = F.cross_entropy(model(words, places).flatten(0, 1), said.flatten(), reduction="sum")
    return total / (8 * (TOKENS - BACK))


def main() -> None:
    """Compare the first step with one process, then train."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    attend = sequence_parallel(layout="zigzag")
    alone, model = Model(), Model(attend=attend)
    model.load_state_dict(alone.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(STEPS):
        whole = make_batch(step)
        loss = loss_of(model, *(shard(x, layout="zigzag") for x in whole))
        optimizer.zero_grad()
        loss.backward()
        for x in (loss.detach(), *(p.grad for p in model.parameters())):
            dist.all_reduce(x)
        optimizer.step()
        if step == 0:
            loss_of(alone, *whole).backward()
            pairs = zip(model.parameters(), alone.parameters(), strict=True)
            error = max((a.grad - b.grad).abs().max().item() for a, b in pairs)
        if dist.get_rank() == 0 and step in (0, STEPS - 1):
            print(f"step {step}: loss {loss:.3f}")
    if dist.get_rank() == 0:
        print(f"largest difference of a gradient to one process: {error:.1e}")
        print(attend.chosen)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
