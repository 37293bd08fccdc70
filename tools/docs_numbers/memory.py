"""Tables of what is found in a memory: slots of the feed-forward layer, one key among many."""

import numpy as np

from docs_numbers.stored import PERCENT, Stored
from docs_numbers.tables import between, difference, less, listed, numbers, spread, table
from flashpoint.lab.data.text.recall import best_guess

SLOTS = (32, 128, 512, 2048, 4096)
MEMORIES = {"relu": "relu", "softmax": "softmax", "softmax-norm": "softmax + norm"}
PAIRS = (4, 8, 16, 32, 64, 128)
ATTENTIONS = {
    "softmax": "softmax",
    "relu, alpha 0.5": "relu-alpha-0.5",
    "relu, alpha 0.5, learned bias": "relu-alpha-0.5-learned-bias",
    "relu, alpha 1": "relu-alpha-1",
    "relu2, alpha 1": "relu2-alpha-1",
    "relu4/sum": "relu4-sum",
}


def _losses(stored: Stored, memory: str, slots: int) -> np.ndarray:
    """Of validation, by seed."""
    return stored.values("memory-slots", f"{memory}-slots{slots}-", "loss")


def _train_loss(stored: Stored, memory: str, slots: int, step: int) -> float:
    """Mean over the seeds, of the hundred updates up to this one."""
    runs = stored.runs_of("memory-slots", f"{memory}-slots{slots}-")
    return float(
        np.mean([row["loss"] for run in runs for row in run.train if row["step"] == step])
    )


@numbers("memory-slots")
def _slots(stored: Stored) -> str:
    rows = []
    for slots in SLOTS:
        relu, softmax, norm = (_losses(stored, memory, slots) for memory in MEMORIES)
        size = stored.values("memory-slots", f"relu-slots{slots}-", "num_parameters").mean()
        pairs = ((relu, softmax), (relu, norm), (norm, softmax))
        cells = [cell for pair in pairs for cell in difference(*pair, 3)]
        means = [spread(group, 3) for group in (relu, softmax, norm)]
        rows.append([slots, f"{size / 1e6:.1f}", *means, *cells])
    head = ["slots", "M parameters", *MEMORIES.values(), "relu less softmax", "interval"]
    head += ["relu less softmax + norm", "interval", "softmax + norm less softmax", "interval"]
    return table(head, rows)


@numbers("memory-slots-training")
def _slots_training(stored: Stored) -> str:
    steps = (300, 500, 1500)
    rows = [
        [
            slots,
            *(f"{_train_loss(stored, 'relu', slots, step):.2f}" for step in steps),
            f"{_losses(stored, 'relu', slots).mean():.2f}",
        ]
        for slots in SLOTS[2:]
    ]
    head = ["slots, relu", *(f"training loss at update {step:,}" for step in steps)]
    return table([*head, "validation loss"], rows)


@numbers("memory-slots-more")
def _slots_more(stored: Stored) -> str:
    found = {
        f"{name}, 4096 slots less 2048": (
            less(_losses(stored, memory, 4096), _losses(stored, memory, 2048), 3) + " nats"
        )
        for memory, name in MEMORIES.items()
    }
    return listed(found)


def _right(stored: Stored, attention: str, pairs: int) -> np.ndarray:
    """Percent of answers, by seed."""
    name = f"{ATTENTIONS[attention]}-trained_pairs32-"
    return PERCENT * stored.values("retrieval", name, f"pairs{pairs}.exact")


@numbers("retrieval")
def _retrieval(stored: Stored) -> str:
    rows = [["a guess", *(f"{PERCENT * best_guess(pairs):.1f}" for pairs in PAIRS)]]
    for attention in ATTENTIONS:
        found = [_right(stored, attention, pairs) for pairs in PAIRS]
        rows.append([attention, *(spread(right, 1) for right in found)])
    return table(["attention", *(f"{pairs} pairs" for pairs in PAIRS)], rows)


@numbers("retrieval-differences")
def _retrieval_differences(stored: Stored) -> str:
    places = ((32, 2), (64, 1), (128, 1))
    rows = []
    for attention in list(ATTENTIONS)[1:]:
        cells = [
            difference(_right(stored, attention, pairs), _right(stored, "softmax", pairs), digits)
            for pairs, digits in places
        ]
        rows.append([attention, *(cell for pair in cells for cell in pair)])
    heads = [cell for pairs, _ in places for cell in (f"{pairs} pairs", "interval")]
    return table(["less softmax", *heads], rows)


@numbers("retrieval-more")
def _retrieval_more(stored: Stored) -> str:
    half, bias, one, squared, _ = list(ATTENTIONS)[1:]
    far = {name: _right(stored, name, 128) for name in ATTENTIONS}
    seeds = {
        f"{name}, 64 pairs: the seeds": f"{between(_right(stored, name, 64), 1)}%"
        for name in (one, squared)
    }
    trained = [_right(stored, name, pairs).min() for name in ATTENTIONS for pairs in PAIRS[:4]]
    return listed(
        {
            "the worst run up to 32 pairs": f"{min(trained):.1f}% right",
            "relu at 128 pairs, alpha 0.5 less alpha 1": f"{less(far[half], far[one], 1)} points",
            "alpha 0.5 at 128 pairs, with a learned bias less without": (
                f"{less(far[bias], far[half], 1)} points"
            ),
            **seeds,
        }
    )
