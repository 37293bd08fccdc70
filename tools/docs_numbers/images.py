"""Tables of image models: the long runs on CIFAR-10, and the studies of small ViTs."""

from typing import Any

import numpy as np

from docs_numbers.stored import PERCENT, SEEDS, Stored
from docs_numbers.tables import (
    between,
    by_seed,
    difference,
    interval,
    less,
    listed,
    numbers,
    spread,
    table,
)
from flashpoint.lab.study.reading import change

CIFAR = "cifar10"
TOKENS = {4: 64, 2: 256}
"""By the size of patches."""
TWINS = {"softmax": "softmax", "relu": "relu / L"}
GAIN = "relu_gain2.33"
STUDENT_975 = 4.303
"""Student's t with two degrees of freedom: three pairs."""


def curve(stored: Stored, patch: int, twin: str, kind: str, key: str) -> np.ndarray:
    """[seed, line]: training logs once an epoch, validation once in ten."""
    runs = [stored.run(f"{CIFAR}/patch{patch}-{twin}-seed{seed}") for seed in SEEDS]
    return np.array([[row[key] for row in getattr(run, kind)] for run in runs])


def cifar_top1(stored: Stored, patch: int, twin: str) -> np.ndarray:
    """Percent by seed, at the end."""
    return PERCENT * curve(stored, patch, twin, "validation", "top1")[:, -1]


@numbers("cifar10")
def _cifar(stored: Stored) -> str:
    rows = []
    for patch, tokens in TOKENS.items():
        softmax, relu = (cifar_top1(stored, patch, twin) for twin in TWINS)
        pairs = relu - softmax
        drawn = interval([relu, softmax])
        half = STUDENT_975 * pairs.std(ddof=1) / len(pairs) ** 0.5
        rows.append(
            [
                *(patch, tokens),
                *(f"{one.mean():.2f}% ± {one.std(ddof=1):.2f}" for one in (softmax, relu)),
                *(f"{drawn.value:+.2f}", by_seed(pairs, "+.2f")),
                f"{drawn.low:+.2f} to {drawn.high:+.2f}",
                f"{pairs.mean() - half:+.2f} to {pairs.mean() + half:+.2f}",
            ]
        )
    head = ["patches", "tokens", *TWINS.values(), "difference", "by seed", "bootstrap", "t"]
    return table(head, rows)


@numbers("cifar10-curves")
def _cifar_curves(stored: Stored) -> str:
    rows = []
    for patch, tokens in TOKENS.items():
        for twin, name in TWINS.items():
            train = curve(stored, patch, twin, "train", "loss").mean(axis=0)
            loss = curve(stored, patch, twin, "validation", "loss").mean(axis=0)
            top1 = PERCENT * curve(stored, patch, twin, "validation", "top1").mean(axis=0)
            losses = (train[47:52].mean(), loss[4], train[55:].mean(), loss[5])
            cells = [*(f"{value:.1f}" for value in top1), *(f"{value:.3f}" for value in losses)]
            rows.append([tokens, name, *cells])
    losses = [f"{kind}, {epoch}" for epoch in (50, 60) for kind in ("train", "validation")]
    return table(["tokens", "twin", *range(10, 61, 10), *losses], rows)


@numbers("cifar10-losses")
def _cifar_losses(stored: Stored) -> str:
    def last(patch: int, twin: str, kind: str, count: int) -> np.ndarray:
        return curve(stored, patch, twin, kind, "loss")[:, -count:].mean(axis=1)

    kinds = {"last training loss": ("train", 5), "last validation loss": ("validation", 1)}
    rows = [
        [
            f"{words}, relu / L less softmax",
            *(
                by_seed(last(patch, "relu", *kind) - last(patch, "softmax", *kind), "+.3f")
                for patch in TOKENS
            ),
        ]
        for words, kind in kinds.items()
    ]
    return table(["by seed", *(f"{tokens} tokens" for tokens in TOKENS.values())], rows)


@numbers("cifar10-gain")
def _cifar_gain(stored: Stored) -> str:
    rows = []
    for twin, name in {**TWINS, GAIN: "relu / L times 2.33"}.items():
        top1 = cifar_top1(stored, 4, twin)
        losses = curve(stored, 4, twin, "train", "loss")[:, -4:].mean(axis=1)
        rows.append([name, spread(top1), by_seed(top1), by_seed(losses, ".3f")])
    return table(["64 tokens", "top-1", "by seed", "training loss, last four epochs"], rows)


@numbers("cifar10-speed")
def _cifar_speed(stored: Stored) -> str:
    rows = []
    for patch, tokens in TOKENS.items():
        softmax, relu = (
            stored.run(f"{CIFAR}/speed-patch{patch}-{twin}").train[-1]["images_per_s"]
            for twin in TWINS
        )
        rates = [f"{round(rate, -2):,.0f}" for rate in (softmax, relu)]
        rows.append([tokens, *rates, f"{relu / softmax:.2f}"])
    return table(["tokens", *(f"{name}, images/s" for name in TWINS.values()), "ratio"], rows)


@numbers("qk-norm")
def _qk_norm(stored: Stored) -> str:
    papers = {"relu": "little", "relu2": "little", "softmax": ""}
    rows = []
    for activation, said in papers.items():
        there, gone = (
            stored.top1("qk-norm", f"{activation}-{norm}") for norm in ("with", "without")
        )
        cells = [spread(there), spread(gone), *difference(gone, there)]
        rows.append([activation, *cells, by_seed(gone - there, "+.2f"), said])
    head = ["attention", "with", "without", "without less with", "interval", "by seed"]
    return table([*head, "the paper's (figure 3)"], rows)


@numbers("qk-norm-more")
def _qk_norm_more(stored: Stored) -> str:
    found = {}
    for norm in ("without", "with"):
        relu, softmax = (stored.top1("qk-norm", f"{twin}-{norm}") for twin in ("relu", "softmax"))
        found[f"relu less softmax, {norm} the norm"] = f"{less(relu, softmax)} points"
    return listed(found)


RULES = (
    *("fixed at 1", "learned from 1", "learned per head from 1", "fixed at 0.5"),
    *("learned from 0.5", "learned per head from 0.5", "softmax"),
)


def _learned_top1(stored: Stored, rule: str) -> np.ndarray:
    return stored.top1("learned-length", rule.replace(" ", "-"))


def _learned(stored: Stored, rule: str, number: str) -> np.ndarray:
    return stored.values("learned-length", f"{rule.replace(' ', '-')}-", f"learned.{number}")


@numbers("learned-length")
def _learned_length(stored: Stored) -> str:
    fixed = _learned_top1(stored, "fixed at 1")
    rows = []
    for rule in RULES:
        top1 = _learned_top1(stored, rule)
        beside = ["", ""] if rule == "fixed at 1" else difference(top1, fixed)
        ends = ["", ""]
        if rule.startswith("learned"):
            lowest = _learned(stored, rule, "alpha_lowest").min()
            highest = _learned(stored, rule, "alpha_highest").max()
            ends = [spread(_learned(stored, rule, "alpha"), 3), f"{lowest:.2f} to {highest:.2f}"]
        rows.append([rule, spread(top1), *beside, *ends])
    head = ["alpha", "top-1", "less fixed at 1", "interval", "alpha at the end"]
    return table([*head, "lowest to highest"], rows)


@numbers("learned-length-more")
def _learned_more(stored: Stored) -> str:
    top1 = {rule: _learned_top1(stored, rule) for rule in RULES}
    half, from_half = top1["fixed at 0.5"], top1["learned from 0.5"]
    layers = {
        f"{rule}: alpha of the {place} layer": f"{_learned(stored, rule, key).mean():.2f}"
        for rule, place, key in (
            ("learned from 1", "first", "alpha_layer0"),
            ("learned from 1", "last", "alpha_layer5"),
            ("learned from 0.5", "first", "alpha_layer0"),
        )
    }
    (run,) = stored.runs_of("learned-length", "learned-from-0.5-", (0,))
    per_head = less(top1["learned per head from 0.5"], half)
    return listed(
        {
            **layers,
            "learned from 0.5 less fixed at 0.5": f"{less(from_half, half)} points",
            "learned per head from 0.5 less fixed at 0.5": f"{per_head} points",
            "learned from 1 less learned from 0.5": (
                f"{less(top1['learned from 1'], from_half)} points"
            ),
            "sum of the learning rates of all updates": (
                f"{sum(PERCENT * row['lr'] for row in run.train):.2f}"
            ),
        }
    )


LONGER = "longer-than-trained"


@numbers(LONGER)
def _longer(stored: Stored) -> str:
    kinds = (
        *(("softmax", "seen"), ("relu-alpha-1", "seen"), ("relu-alpha-1", "fixed")),
        *(("relu-alpha-0.5", "seen"), ("relu-alpha-0.5", "fixed")),
    )
    rows = []
    for tokens in (16, 36, 64, 144, 256, 576):
        found = [
            stored.top1(LONGER, f"{attention}-trained_tokens64", f"{rule}{tokens}.")
            for attention, rule in kinds
        ]
        softmax, seen, fixed, *_ = found
        rules = ["", ""] if tokens == 64 else difference(seen, fixed, 1)
        means = [spread(top1, 1) for top1 in found]
        rows.append([tokens, *means, *rules, *difference(seen, softmax, 1)])
    names = [
        f"{h}, {rule}" for h in ("relu / L", "relu / sqrt(L)") for rule in ("keys seen", "64")
    ]
    head = ["tokens", "softmax", *names, "keys seen less 64", "interval", "less softmax"]
    return table([*head, "interval"], rows)


SIZES = ("128-8", "128-4", "192-4", "256-4")
PAIR = ("relu", "softmax")


def _sized(stored: Stored, size: str, number: str = "top1") -> list[np.ndarray]:
    """Percent of both twins, by seed."""
    return [PERCENT * stored.values("scaling", f"{size}-{twin}-", number) for twin in PAIR]


@numbers("scaling")
def _scaling(stored: Stored) -> str:
    rows = []
    for size in SIZES:
        parameters, flops = (
            stored.values("scaling", f"{size}-relu-", number).mean()
            for number in ("num_parameters", "flops")
        )
        cells = []
        for number in ("top1", "transfer.mean"):
            relu, softmax = _sized(stored, size, number)
            cells += [spread(relu), spread(softmax), *difference(relu, softmax)]
        rows.append(
            [size.replace("-", "/"), f"{parameters / 1e6:.1f}", f"{flops / 1e12:.0f}", *cells]
        )
    pair = ["softmax", "relu / L less softmax", "interval"]
    head = ["size", "M parameters", "training TFLOP", "relu / L", *pair]
    return table([*head, "transfer, relu / L", *pair], rows)


@numbers("scaling-more")
def _scaling_more(stored: Stored) -> str:
    draws = [
        PERCENT * one
        for size in SIZES
        for twin in PAIR
        for one in stored.values("scaling", f"{size}-{twin}-", "transfer.spread")
    ]
    longer = np.subtract(*(cifar_top1(stored, 4, twin).mean() for twin in PAIR))
    here = np.subtract(*(one.mean() for one in _sized(stored, "192-4")))
    return listed(
        {
            "standard deviation over draws of the probe's images, one model": (
                f"{between(draws, 1)} points"
            ),
            "relu / L less softmax at 192/4, 15 epochs (this study)": f"{here:+.2f} points",
            "relu / L less softmax at 192/4, 60 epochs (CIFAR-10 above)": f"{longer:+.2f} points",
        }
    )


GATES = ("without", "with")


def gate_top1(stored: Stored, gate: str, alpha: float) -> np.ndarray:
    """Percent by seed."""
    return stored.top1("gate", f"{gate}-alpha{alpha:g}")


@numbers("gate")
def _gate(stored: Stored) -> str:
    rows = []
    for alpha in (0.0, 0.5, 1.0, 1.5):
        found = [gate_top1(stored, gate, alpha) for gate in GATES]
        cells = [*map(spread, found), *difference(found[1], found[0])]
        for gate, top1 in zip(GATES, found, strict=True):
            cells += ["", ""] if alpha == 1 else difference(gate_top1(stored, gate, 1.0), top1)
        rows.append([f"{alpha:g}", *cells])
    head = ["alpha", *GATES, "with less without", "interval"]
    return table([*head, "alpha 1 less this, without", "interval", "with", "interval"], rows)


@numbers("gate-more")
def _gate_more(stored: Stored) -> str:
    arms = [gate_top1(stored, gate, alpha) for gate in GATES for alpha in (1.0, 0.5)]
    part = interval(arms, change)
    gated, plain = (
        1e3 * stored.values("gate", "time-", f"{gate}_s").mean() for gate in ("with", "without")
    )
    more = _more_products(stored)
    sizes = [stored.values("gate", f"{gate}-alpha1-", "num_parameters").mean() for gate in GATES]
    return listed(
        {
            "gain from alpha 0.5 to 1 that a gate takes away": (
                f"{part.value:.2f} ({part.low:+.2f} to {part.high:+.2f}) points"
            ),
            "a training step with and without a gate": f"{gated:.2f} ms and {plain:.2f} ms",
            "more matrix products with a gate": f"{more:.1f}%",
            "more parameters with a gate": f"{PERCENT * (sizes[1] / sizes[0] - 1):.1f}%",
        }
    )


def _more_products(stored: Stored) -> float:
    """Percent that a gate adds to the products of a forward, in the models that were timed."""
    from flashpoint.models.cost import forward_flops
    from flashpoint.models.vit import ViTConfig

    flops = {}
    for gate, config in stored.options_of("gate", "time-seed0")["configs"].items():
        model = config["model"]
        shape = {k: v for k, v in model.items() if isinstance(v, int)}
        sizes: dict[str, Any] = {"image_size": 32, "channels": 3, "num_classes": 10, **shape}
        flops[gate] = forward_flops(ViTConfig(gate=model["gate"], **sizes))
    return PERCENT * (flops["with"] / flops["without"] - 1)


@numbers("gate-rounding")
def _rounding(stored: Stored) -> str:
    """Runs without a gate beside earlier runs of the same config and seed."""
    pairs = [
        [
            stored.runs_of(study, name.format(alpha), (seed,))[0]
            for study, name in (
                ("gate", "without-alpha{:g}-"),
                ("learned-length", "fixed-at-{:g}-"),
            )
        ]
        for alpha in (0.5, 1.0)
        for seed in SEEDS
    ]
    ends = PERCENT * np.array([[run.validation[-1]["top1"] for run in pair] for pair in pairs])
    apart = abs(np.subtract(*ends.T))
    first = np.array([[run.train[0]["loss"] for run in pair] for pair in pairs])
    commits = [{pair[n].record["environment"]["commit"] for pair in pairs} for n in (0, 1)]
    seeds = [arm.std(ddof=1) for alpha in (ends[:3], ends[3:]) for arm in alpha.T]
    return listed(
        {
            "commits compared": " and ".join(f"`{one}`" for (one,) in commits),
            "training losses differ over the first 100 updates": (
                f"by up to {abs(np.subtract(*first.T)).max():.4f}"
            ),
            "top-1 differs at the end": f"by {between(apart)} points",
            "standard deviation of one run that follows": (
                f"{np.sqrt((apart**2).mean() / 2):.2f} points"
            ),
            "standard deviation over seeds of the same arms": f"{between(seeds)} points",
        }
    )
