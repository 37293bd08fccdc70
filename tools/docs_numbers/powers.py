"""Tables of the power of the length, the activation and the variance that follows of them."""

import numpy as np

from docs_numbers.stored import PERCENT, SEEDS, Stored
from docs_numbers.tables import between, difference, less, listed, numbers, spread, table
from flashpoint.lab.study.moments import ACTIVATIONS as H
from flashpoint.lab.study.moments import mean_square, output_variance, variance_name
from flashpoint.lab.study.studies.length_power import ACTIVATIONS, ALPHAS

POWER = "length-power"
KEYS = (16, 64, 256, 1024, 4096, 16384)
LAYER_WIDTH = 512


def _top1(
    stored: Stored, activation: str, alpha: float, tokens: int = 64, seeds: tuple[int, ...] = SEEDS
) -> np.ndarray:
    return stored.top1(POWER, f"tokens{tokens}-{activation}-alpha{alpha:g}", seeds=seeds)


def _softmax(stored: Stored, tokens: int) -> np.ndarray:
    return stored.top1(POWER, f"tokens{tokens}-softmax")


def _has_all_seeds(activation: str, alpha: float, tokens: int) -> bool:
    return tokens == 64 and (activation == "relu" or alpha == 1.0)


def _with_seed_0(stored: Stored, activation: str, tokens: int) -> dict[float, float]:
    """By alpha."""
    return {alpha: _top1(stored, activation, alpha, tokens, (0,))[0] for alpha in ALPHAS}


@numbers(POWER)
def _powers(stored: Stored) -> str:
    rows = []
    for tokens in (64, 16):
        for activation in ACTIVATIONS:
            first = _with_seed_0(stored, activation, tokens)
            cells = [
                spread(_top1(stored, activation, alpha, tokens))
                if _has_all_seeds(activation, alpha, tokens)
                else f"{first[alpha]:.2f}"
                for alpha in ALPHAS
            ]
            rows.append([tokens, activation, *cells, f"{max(first, key=first.__getitem__):g}"])
    head, *rest = (f"{alpha:g}" for alpha in ALPHAS)
    return table(["tokens", "activation", f"alpha {head}", *rest, "best, seed 0"], rows)


@numbers(f"{POWER}-alpha1")
def _activations(stored: Stored) -> str:
    relu, softmax = _top1(stored, "relu", 1.0), _softmax(stored, 64)
    rows = []
    for activation in ACTIVATIONS:
        found = _top1(stored, activation, 1.0)
        beside = ["", ""] if activation == "relu" else difference(relu, found)
        rows.append([activation, spread(found), *beside, *difference(found, softmax)])
    head = ["activation", "top-1", "relu less it", "interval", "less softmax", "interval"]
    return table(head, rows)


@numbers(f"{POWER}-more")
def _powers_more(stored: Stored) -> str:
    best = _top1(stored, "relu", 1.0)
    steps = {
        f"relu, alpha 1 less alpha {alpha:g}, 64 tokens": (
            f"{less(best, _top1(stored, 'relu', alpha))} points"
        )
        for alpha in (0.75, 1.25, 0.5, 0.0)
    }
    arms = [
        _top1(stored, activation, alpha)
        for activation in ACTIVATIONS
        for alpha in ALPHAS
        if _has_all_seeds(activation, alpha, 64)
    ]
    arms += [_softmax(stored, tokens) for tokens in (64, 16)]
    return listed(
        {
            **{
                f"softmax, {tokens} tokens": spread(_softmax(stored, tokens))
                for tokens in (64, 16)
            },
            **steps,
            "standard deviation over seeds": (
                f"{between([arm.std(ddof=1) for arm in arms], 1)} points"
            ),
        }
    )


@numbers(f"{POWER}-sums")
def _sums(stored: Stored) -> str:
    """What the weights of a query add up to in trained models, and how well these fit."""
    rows = []
    for alpha in (0.0, 1.0, 2.0):
        name = f"tokens64-relu-alpha{alpha:g}-"
        (run,) = stored.runs_of(POWER, name, (0,))
        heads = (run.statistics or {"heads": []})["heads"]
        mass, empty = (np.mean([head[key] for head in heads]) for key in ("mass", "empty_rows"))
        digits = 1 if mass > 10 else 2 if mass > 0.1 else 3
        loss = stored.values(POWER, name, "train_loss").mean()
        rows.append([f"{alpha:g}", f"{mass:.{digits}f}", f"{PERCENT * empty:.0f}%", f"{loss:.2f}"])
    head = ["alpha", "sum of a query's weights", "queries that see no key", "training loss"]
    return table(head, rows)


def _variances(stored: Stored, name: str) -> np.ndarray:
    return stored.values("variance", "", name)


@numbers("variance")
def _variance(stored: Stored) -> str:
    rows = []
    for activation in ("softmax", *H):
        alpha = 0.0 if activation == "softmax" else 1.0
        ratios = [
            _variances(stored, variance_name(activation, alpha, n))
            / output_variance(activation, alpha, n)
            for n in KEYS
        ]
        square = "" if activation == "softmax" else f"{mean_square(activation):.4f}"
        rows.append([activation, square, *(spread(ratio, 3) for ratio in ratios)])
    first, *rest = KEYS
    return table(["activation", "E[h²]", f"{first} keys", *rest], rows)


@numbers("variance-layer")
def _variance_layer(stored: Stored) -> str:
    rows = []
    for keys in KEYS:
        kinds = ((("relu", 0.5), 2, 3), (("softmax", 0.0), keys, 2), (("relu", 1.0), keys, 3))
        cells = []
        for kind, factor, digits in kinds:
            measured = _variances(stored, variance_name(*kind, keys, is_layer=True))
            computed = output_variance(*kind, keys, width=LAYER_WIDTH)
            cells += [spread(factor * measured, digits), f"{factor * computed:.{digits}f}"]
        rows.append([keys, *cells[:2], 1, *cells[2:]])
    head = ["keys", "relu, paper 2's factor", "computed", "the lemma", "softmax, times n"]
    return table([*head, "computed", "relu / L, times n", "computed"], rows)
