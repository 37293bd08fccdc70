"""docs/results.md, and what quotes it, beside the stored runs that its numbers come from."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from flashpoint.data.text.recall import best_guess
from flashpoint.evaluation.translation import SOURCE_SHARE
from flashpoint.models.registry import create_model
from flashpoint.report.run_files import read_runs
from flashpoint.report.verdicts import count_words
from flashpoint.study.moments import ACTIVATIONS, mean_square, output_variance, variance_name
from flashpoint.study.reading import over_pairs
from flashpoint.study.registry import STUDIES as REGISTRY
from flashpoint.study.sections import read_section
from flashpoint.study.verdict import bootstrap

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "benchmarks" / "results" / "cifar10"
PAGE = (ROOT / "docs" / "results.md").read_text("utf-8")
TEXT = " ".join(PAGE.split())
STUDIES = ROOT / "results"
TOKENS = {4: 64, 2: 256}
TWINS = {"softmax": "softmax", "relu": "relu / L"}
ABLATION = {  # as the page names it, and its trials
    "softmax": "softmax",
    "relu, no factor": "relu-no-factor",
    "relu, factor, gamma from 1": "relu-factor-gamma-from-1",
    "relu, factor": "relu-factor",
    "relu, factor and penalty": "relu-factor-and-penalty",
}
RULES = (
    *("fixed at 1", "learned from 1", "learned per head from 1", "fixed at 0.5"),
    *("learned from 0.5", "learned per head from 0.5", "softmax"),
)
RECALL = {
    "softmax": "softmax",
    "relu, alpha 0.5": "relu-alpha-0.5",
    "relu, alpha 0.5, learned bias": "relu-alpha-0.5-learned-bias",
    "relu, alpha 1": "relu-alpha-1",
    "relu2, alpha 1": "relu2-alpha-1",
}
KEYS = (16, 64, 256, 1024, 4096, 16384)
TESTED = (16, 36, 64, 144, 256, 576)
VERDICTS = {
    "variance": ["supports", "supports", "contradicts"],
    "qk-norm": ["supports", "contradicts"],
    "learned-length": ["undecided", "supports", "supports", "contradicts"],
    "longer-than-trained": ["undecided", "supports"],
    "retrieval": ["undecided", "undecided"],
}
T_975 = 4.303  # Student's t with two degrees of freedom: three pairs


def runs_of(patch, twin):
    """Seeds 0, 1 and 2, in order."""
    runs = read_runs(sorted(RUNS.glob(f"patch{patch}-{twin}-seed*")))
    assert [run.config["seed"] for run in runs] == [0, 1, 2]
    return runs


def top1_of(patch, twin):
    return np.array([100 * run.record["validation"]["top1"] for run in runs_of(patch, twin)])


def curve(patch, twin, kind, key):
    """By seed and line of the log, which come once an epoch of training, once in ten validated."""
    return np.array([[row[key] for row in getattr(run, kind)] for run in runs_of(patch, twin)])


def recipe(run):
    """A config less its seed; an option that is null may be younger than the run."""
    return {k: v for k, v in run.config.items() if k != "seed" and v is not None}


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("patch", TOKENS)
def test_seeds_share_a_recipe_and_end_as_their_curves_do(patch, twin):
    runs = runs_of(patch, twin)
    assert all(recipe(run) == recipe(runs[0]) for run in runs)
    for run in runs:
        assert run.config["model"]["patch_size"] == patch
        assert run.config["model"]["attention"]["activation"] == twin
        assert run.record["validation"]["top1"] == run.validation[-1]["top1"]
        assert run.validation[-1]["step"] == run.record["steps"] == 23_438


@pytest.mark.parametrize("run", sorted(RUNS.iterdir()), ids=lambda run: run.name)
def test_stored_run_is_whole_and_names_no_folder_of_a_machine(run):
    files = sorted(run.iterdir())
    assert [file.name for file in files] == ["config.yaml", "metrics.jsonl", "record.json"]
    text = "".join(file.read_text("utf-8") for file in files)
    assert not any(folder in text for folder in (":/", '"/', " /", "/tmp", "/home", "/root"))


@pytest.mark.parametrize("patch", TOKENS)
def test_table_of_twins_is_that_of_the_runs(patch):
    softmax, relu = top1_of(patch, "softmax"), top1_of(patch, "relu")
    pairs = relu - softmax
    drawn = bootstrap([relu, softmax])
    half = T_975 * pairs.std(ddof=1) / len(pairs) ** 0.5
    cells = (
        *(f"{patch}", f"{TOKENS[patch]}"),
        *(f"{twin.mean():.2f}% ± {twin.std(ddof=1):.2f}" for twin in (softmax, relu)),
        f"{drawn.value:+.2f}",
        ", ".join(f"{pair:+.2f}" for pair in pairs),
        f"{drawn.low:+.2f} to {drawn.high:+.2f}",
        f"{pairs.mean() - half:+.2f} to {pairs.mean() + half:+.2f}",
    )
    assert f"| {' | '.join(cells)} |" in PAGE


def test_runs_below_85_percent_and_of_another_commit_are_those_the_text_names():
    runs = [run for patch in TOKENS for twin in TWINS for run in runs_of(patch, twin)]
    low = [run.name for run in runs if run.record["validation"]["top1"] <= 0.85]
    later = [run.name for run in runs if run.record["environment"]["commit"] != "549b46b"]
    assert low == ["patch2-relu-seed1"]
    assert later == [f"patch2-{twin}-seed{seed}" for twin in TWINS for seed in (1, 2)]


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("patch", TOKENS)
def test_table_of_curves_is_that_of_the_runs(patch, twin):
    train = curve(patch, twin, "train", "loss").mean(axis=0)
    loss = curve(patch, twin, "validation", "loss").mean(axis=0)
    top1 = 100 * curve(patch, twin, "validation", "top1").mean(axis=0)
    cells = (
        *(f"{TOKENS[patch]}", TWINS[twin]),
        *(f"{value:.1f}" for value in top1),
        *(f"{train[47:52].mean():.3f}", f"{loss[4]:.3f}"),
        *(f"{train[55:].mean():.3f}", f"{loss[5]:.3f}"),
    )
    assert f"| {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize("patch", TOKENS)
def test_differences_of_losses_by_seed_are_those_of_the_runs(patch):
    def last(kind, twin, count):
        return curve(patch, twin, kind, "loss")[:, -count:].mean(axis=1)

    for kind, count in (("train", 5), ("validation", 1)):
        by_seed = last(kind, "relu", count) - last(kind, "softmax", count)
        assert ", ".join(f"{difference:+.3f}" for difference in by_seed) in PAGE


def test_softmax_at_epoch_50_beside_relu_at_the_end_is_as_the_text_counts():
    train, validation = [], []
    for patch in TOKENS:
        then = curve(patch, "softmax", "train", "loss")[:, 47:52].mean(axis=1)
        train.extend(then > curve(patch, "relu", "train", "loss")[:, 55:].mean(axis=1))
        then = curve(patch, "softmax", "validation", "loss")[:, 4]
        validation.extend(then < curve(patch, "relu", "validation", "loss")[:, 5])
    assert (sum(train), sum(validation), len(train)) == (5, 6, 6)
    assert "in five of the six pairs, and the lower validation loss in all six." in PAGE


def test_larger_gain_is_as_the_text_says():
    top1 = top1_of(4, "relu_gain2.33")
    assert f"{top1.mean():.2f}% ± {top1.std(ddof=1):.2f} at 64 tokens" in PAGE
    assert ", ".join(f"{value:.2f}" for value in top1) in PAGE
    for twin in ("relu_gain2.33", *TWINS):
        last = curve(4, twin, "train", "loss")[:, -4:].mean(axis=1)
        assert ", ".join(f"{value:.3f}" for value in last) in PAGE
    changed, plain = (recipe(runs_of(4, twin)[0]) for twin in ("relu_gain2.33", "relu"))
    gains = [config["model"]["attention"].pop("gain") for config in (changed, plain)]
    assert gains == [2.33, 1.0]
    assert changed["model"] == plain["model"]
    assert changed["optimizer"] == plain["optimizer"]


def translations(study, name):
    """BLEU, BLEU of documents and validation loss: [3, 3], by seed."""
    rows = []
    for seed in (0, 1, 2):
        trial = STUDIES / study / f"{name}-seed{seed}"
        found = json.loads((trial / "evaluations.json").read_text("utf-8"))["translation"]
        loss = json.loads((trial / "record.json").read_text("utf-8"))["validation"]["loss"]
        rows.append((found["bleu"], found["document_bleu"], loss))
    return np.array(rows)


def spread(values):
    return f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"


@pytest.mark.parametrize("length", [256, 512, 1024])
def test_table_of_documents_is_that_of_the_trials(length):
    softmax, relu = (
        translations("document-length", f"{name}-length{length}") for name in ("softmax", "relu")
    )
    drawn = bootstrap([relu[:, 0], softmax[:, 0]])
    cells = [spread(twin[:, column]) for twin in (softmax, relu) for column in (0, 1)]
    cells += [f"{drawn.value:+.2f}", f"{drawn.low:+.2f} to {drawn.high:+.2f}"]
    assert f"| {length} | {' | '.join(cells)} |" in PAGE


def by_length(key):
    """Of softmax, then of relu: the numbers of each length, by seed."""
    return [
        [
            np.array([one["translation"][key] for one in found])
            for length in (256, 512, 1024)
            for found in [
                record_of("document-length", f"{twin}-length{length}-", "evaluations.json")
            ]
        ]
        for twin in ("softmax", "relu")
    ]


def test_what_came_first_and_what_was_translated_again_is_as_the_text_says():
    shares = [[f"{group.mean():.0%}" for group in twin] for twin in by_length("repeated_share")]
    assert "{}, {} and {} of softmax's segments at 256, 512 and 1024".format(*shares[0]) in TEXT
    assert "1024 tokens, {}, {} and {} of ReLUFormer's".format(*shares[1]) in TEXT
    for key, text in (
        ("document_bleu", "the gap does shrink: {}, {} and {}, by"),
        ("chrf", "the gap grows: {}, {} and {}."),
    ):
        pairs = zip(*by_length(key), strict=True)
        gaps = [f"{softmax.mean() - relu.mean():.1f}" for softmax, relu in pairs]
        assert text.format(*gaps) in TEXT
    softmax, relu = by_length("document_bleu")
    groups = [relu[2], softmax[2], relu[0], softmax[0]]
    drawn = bootstrap(groups, over_pairs(lambda longest, shortest: longest - shortest))
    assert f"by {drawn.value:.1f} ({drawn.low:+.1f} to {drawn.high:+.1f}) from 256" in TEXT
    kept = [f"{relu[n].mean() / softmax[n].mean():.0%}" for n in (0, 2)]
    assert "from {} of softmax's d-BLEU to {}".format(*kept) in TEXT


def test_parts_and_sizes_are_as_the_text_says():
    assert SOURCE_SHARE == 0.75
    assert f"at most {int(512 * SOURCE_SHARE)} source tokens, three quarters" in TEXT
    sizes = []
    for name in ("reluformer_iwslt", "reluformer_base"):
        with torch.device("meta"):
            model = create_model(name)
        sizes.append(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}")
    assert "have {} and {} M".format(*sizes) in TEXT


@pytest.mark.parametrize("kind", ABLATION)
def test_table_of_the_ablation_is_that_of_the_trials(kind):
    bleu, document_bleu, loss = translations("relu-attention", ABLATION[kind]).T
    assert f"| {kind} | {spread(bleu)} | {spread(document_bleu)} | {loss.mean():.2f} |" in PAGE


def test_softmax_had_the_loss_of_reluformer_by_update_1200():
    def train_loss(name, step):
        runs = read_runs([STUDIES / "relu-attention" / f"{name}-seed{seed}" for seed in range(3)])
        rows = [row for run in runs for row in run.train if row["step"] == step]
        assert len(rows) == 3
        return np.mean([row["loss"] for row in rows])

    last = train_loss("relu-factor-and-penalty", 2000)
    assert train_loss("softmax", 1200) < last < train_loss("softmax", 1100)


def record_of(study, name, file="record.json"):
    """Of seeds 0, 1 and 2."""
    trials = [STUDIES / study / f"{name}seed{seed}" for seed in (0, 1, 2)]
    return [json.loads((trial / file).read_text("utf-8")) for trial in trials]


def top1_in(study, name, evaluation=None):
    """Percent by seed: of the validation, or of an evaluation after it."""
    if evaluation is None:
        return np.array([100 * r["validation"]["top1"] for r in record_of(study, f"{name}-")])
    found = record_of(study, f"{name}-", "evaluations.json")
    return np.array([100 * one[evaluation]["top1"] for one in found])


def rounded(values, digits):
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def difference(first, second, digits=2):
    """Two cells: the difference and its interval."""
    drawn = bootstrap([first, second])
    ends = f"{drawn.low:+.{digits}f} to {drawn.high:+.{digits}f}"
    return [f"{drawn.value:+.{digits}f}", ends]


def said(first, second):
    """The same in a sentence."""
    value, interval = difference(first, second)
    return f"{value} ({interval})"


def assert_row(*cells):
    assert "|" + "".join(f" {cell} |" if cell != "" else " |" for cell in cells) in PAGE


def variances(name):
    return np.array([record["numbers"][name] for record in record_of("variance", "")])


@pytest.mark.parametrize("activation", ["softmax", *ACTIVATIONS])
def test_table_of_variances_is_that_of_the_trials(activation):
    alpha = 0.0 if activation == "softmax" else 1.0
    ratios = [
        variances(variance_name(activation, alpha, n)) / output_variance(activation, alpha, n)
        for n in KEYS
    ]
    square = "" if activation == "softmax" else f"{mean_square(activation):.4f}"
    assert_row(activation, square, *(rounded(ratio, 3) for ratio in ratios))


@pytest.mark.parametrize("keys", KEYS)
def test_table_of_variances_in_a_layer_is_that_of_the_trials(keys):
    kinds = ((("relu", 0.5), 2, 3), (("softmax", 0.0), keys, 2), (("relu", 1.0), keys, 3))
    cells = []
    for kind, factor, digits in kinds:
        cells += [
            rounded(factor * variances(variance_name(*kind, keys, is_layer=True)), digits),
            f"{factor * output_variance(*kind, keys, width=512):.{digits}f}",
        ]
    assert_row(keys, *cells[:2], 1, *cells[2:])


@pytest.mark.parametrize("activation", ["relu", "relu2", "softmax"])
def test_table_of_the_norm_is_that_of_the_trials(activation):
    there, gone = (top1_in("qk-norm", f"{activation}-{norm}") for norm in ("with", "without"))
    by_seed = ", ".join(f"{pair:+.2f}" for pair in gone - there)
    cells = [spread(there), spread(gone), *difference(gone, there), by_seed]
    assert f"| {activation} | {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize("norm", ["with", "without"])
def test_relu_beside_softmax_by_norm_is_as_the_text_says(norm):
    relu, softmax = (top1_in("qk-norm", f"{twin}-{norm}") for twin in ("relu", "softmax"))
    assert said(relu, softmax).removeprefix("+") in PAGE


@pytest.mark.parametrize("rule", RULES)
def test_table_of_alphas_is_that_of_the_trials(rule):
    name = rule.replace(" ", "-")
    top1, fixed = (top1_in("learned-length", one) for one in (name, "fixed-at-1"))
    less = ["", ""] if rule == "fixed at 1" else difference(top1, fixed)
    alphas = ["", ""]
    if rule.startswith("learned"):
        found = [
            one["learned"] for one in record_of("learned-length", f"{name}-", "evaluations.json")
        ]
        lowest = min(one["alpha_lowest"] for one in found)
        highest = max(one["alpha_highest"] for one in found)
        ends = rounded(np.array([one["alpha"] for one in found]), 3)
        alphas = [ends, f"{lowest:.2f} to {highest:.2f}"]
    assert_row(rule, spread(top1), *less, *alphas)


def test_learned_alphas_gain_and_go_where_the_text_says():
    from_one, from_half, per_head, half = (
        top1_in("learned-length", name)
        for name in (
            *("learned-from-1", "learned-from-0.5"),
            *("learned-per-head-from-0.5", "fixed-at-0.5"),
        )
    )
    value, interval = difference(from_half, half)
    assert f"gains {value[1:]} points ({interval}) over 0.5" in TEXT
    assert f"leaves {said(from_one, from_half)[1:]} to a start at 1" in TEXT
    assert f"gains {said(per_head, half)[1:]}" in TEXT
    layers = {
        (name, layer): np.mean(
            [
                one["learned"][f"alpha_layer{layer}"]
                for one in record_of("learned-length", f"{name}-", "evaluations.json")
            ]
        )
        for name, layer in (("learned-from-1", 0), ("learned-from-1", 5), ("learned-from-0.5", 0))
    }
    first, last, of_half = (f"{alpha:.2f}" for alpha in layers.values())
    assert f"The first layer goes to {first}, the last to {last}." in TEXT
    assert f"{of_half} in the first layer" in TEXT
    (run,) = read_runs([STUDIES / "learned-length" / "learned-from-0.5-seed0"])
    assert f"add up to {sum(100 * row['lr'] for row in run.train):.2f}" in TEXT


@pytest.mark.parametrize("tokens", TESTED)
def test_table_of_other_lengths_is_that_of_the_trials(tokens):
    softmax, one, one_fixed, half, half_fixed = (
        top1_in("longer-than-trained", f"{attention}-trained_tokens64", f"{rule}{tokens}")
        for attention, rule in (
            *(("softmax", "seen"), ("relu-alpha-1", "seen"), ("relu-alpha-1", "fixed")),
            *(("relu-alpha-0.5", "seen"), ("relu-alpha-0.5", "fixed")),
        )
    )
    means = [rounded(top1, 1) for top1 in (softmax, one, one_fixed, half, half_fixed)]
    rules = ["", ""] if tokens == 64 else difference(one, one_fixed, 1)
    assert_row(tokens, *means, *rules, *difference(one, softmax, 1))
    assert tokens == 64 or one.mean() > one_fixed.mean()
    assert tokens == 64 or half.mean() > half_fixed.mean()
    low = bootstrap([half, half_fixed]).low
    assert (low <= 0) == (tokens in (64, 256, 576))


def test_second_validation_differs_by_one_image_in_three_models():
    attentions = ("softmax", "relu-alpha-1", "relu-alpha-0.5")
    names = [f"{attention}-trained_tokens64" for attention in attentions]
    off = [
        round(100 * abs(first - again))
        for name in names
        for first, again in zip(
            top1_in("longer-than-trained", name),
            top1_in("longer-than-trained", name, "seen64"),
            strict=True,
        )
    ]
    assert sorted(off) == [0] * 6 + [1] * 3


def right_answers(attention, pairs):
    name = f"{RECALL[attention]}-trained_pairs32-"
    found = record_of("retrieval", name, "evaluations.json")
    return np.array([100 * one[f"pairs{pairs}"]["exact"] for one in found])


def leaves_plateau(attention, seed):
    """The update from which the training loss stays below softmax's by more than 0.05."""
    names = (RECALL[attention], RECALL["softmax"])
    run, softmax = read_runs(
        [STUDIES / "retrieval" / f"{name}-trained_pairs32-seed{seed}" for name in names]
    )
    pairs = list(zip(run.train, softmax.train, strict=True))
    on_it = [row["step"] for row, other in pairs if row["loss"] >= other["loss"] - 0.05]
    after = [row["step"] for row in run.train if row["step"] > on_it[-1]]
    return after[0] if after else None


@pytest.mark.parametrize("attention", RECALL)
def test_table_of_recall_is_that_of_the_trials(attention):
    cells = [
        ", ".join(f"{share:.1f}" for share in right_answers(attention, pairs))
        for pairs in (4, 8, 16, 32)
    ]
    found, softmax = (right_answers(kind, 32) for kind in (attention, "softmax"))
    less = ["", ""] if attention == "softmax" else difference(found, softmax, 1)
    updates = [leaves_plateau(attention, seed) for seed in (0, 1, 2)]
    left = ", ".join("-" if update is None else f"{update:,}" for update in updates)
    assert_row(attention, *cells, rounded(found, 1), *less, left)


def test_recall_is_beside_a_guess_as_the_text_says():
    guesses = [f"{100 * best_guess(pairs):.1f}" for pairs in (4, 8, 16, 32)]
    assert_row("a guess", *guesses, "", "", "", "")
    best = max(right_answers(attention, 64).max() for attention in RECALL)
    assert f"in more than {best:.1f}%, less than a guess ({100 * best_guess(64):.1f}%)" in TEXT
    counts = np.arange(2, 33)
    shares = np.log((counts + 1) / counts) / np.log(33 / 2)
    guessed = 0.75 + 0.25 * sum(
        share * best_guess(count) for share, count in zip(shares, counts.tolist(), strict=True)
    )
    assert f"with a guess {guessed:.0%} of tokens are right" in TEXT
    stayed = [
        record["validation"]["token_accuracy"]
        for attention in RECALL
        for seed, record in enumerate(
            record_of("retrieval", f"{RECALL[attention]}-trained_pairs32-")
        )
        if leaves_plateau(attention, seed) is None
    ]
    assert len(stayed) == 11
    low, high = 100 * min(stayed), 100 * max(stayed)
    assert f"{low:.1f} to {high:.1f}% are in the eleven runs" in TEXT
    softmax = record_of("retrieval", "softmax-trained_pairs32-")
    train = {f"{record['train_loss']:.2f}" for record in softmax}
    losses = sorted(f"{record['validation']['loss']:.2f}" for record in softmax)
    assert f"loss of {train.pop()} and {losses[0]} to {losses[-1]} in validation" in TEXT
    assert not train


def repeated():
    """Runs of equal configs and seeds in several studies."""
    groups = {}
    for file in sorted(STUDIES.rglob("config.yaml")):
        groups.setdefault(file.read_text("utf-8"), []).append(file.parent)
    return {tuple(group): read_runs(group) for group in groups.values() if len(group) > 1}


def test_equal_configs_gave_equal_curves_but_for_softmax_over_documents():
    alike, apart = [], []
    for group in repeated().values():
        curves = [[row["loss"] for row in (*run.train, *run.validation)] for run in group]
        (alike if all(curve == curves[0] for curve in curves) else apart).append(group)
    images = [group for group in alike if group[0].config["task"] == "vision"]
    assert (len(images), len(alike) - len(images), len(apart)) == (9, 3, 3)
    assert {len(group) for group in images} == {2, 3}
    assert all("softmax" in run.name for group in apart for run in group)
    largest = {
        step: max(
            abs(
                np.subtract(
                    *(row["loss"] for run in group for row in run.train if row["step"] == step)
                )
            )
            for group in apart
        )
        for step in (100, 2000)
    }
    assert f"by up to {largest[100]:.4f} at update 100 and by up to {largest[2000]:.3f} at" in TEXT


def test_verdicts_are_those_that_the_text_gives():
    for name, words in VERDICTS.items():
        found = read_section(STUDIES / name, REGISTRY).findings.verdicts
        assert [verdict.word for verdict in found] == words, name
    closed, ratio, lemma = read_section(STUDIES / "variance", REGISTRY).findings.verdicts
    for verdict, digits in ((closed, 3), (ratio, 2), (lemma, 2)):
        value, low, high = (
            f"{number:.{digits}f}" for number in (verdict.value, verdict.low, verdict.high)
        )
        assert f"{value} ({low} to {high})" in TEXT
    alpha = read_section(STUDIES / "learned-length", REGISTRY).findings.verdicts[2]
    assert f"{alpha.value:.3f} on average ({alpha.low:.3f} to {alpha.high:.3f})" in TEXT
    longer = read_section(STUDIES / "longer-than-trained", REGISTRY).findings.verdicts[0]
    assert f"{longer.value:+.2f} ({longer.low:+.2f} to {longer.high:+.2f})" in TEXT


def test_readme_counts_the_verdicts():
    sections = [read_section(folder, REGISTRY) for folder in STUDIES.iterdir()]
    found = [verdict for section in sections for verdict in section.findings.verdicts]
    assert len(sections) == 7
    words = count_words(found).replace("supported", "are supported")
    assert f"of {len(found)} claims {words}." in " ".join(
        (ROOT / "README.md").read_text("utf-8").split()
    )


def test_every_figure_is_there_and_shown():
    shown = set(re.findall(r"\(figures/([^)]*)\)", PAGE))
    stored = {file.name for file in (ROOT / "docs" / "figures").glob("*.svg")}
    assert shown == stored
    for name in sorted(file.name for file in STUDIES.iterdir()):
        assert any(figure.startswith(name) for figure in shown), name


@pytest.mark.parametrize(
    "file",
    sorted(file for file in STUDIES.rglob("*") if file.is_file()),
    ids=lambda file: file.parent.name,
)
def test_stored_trial_names_no_folder_of_a_machine(file):
    text = file.read_text("utf-8")
    assert not any(folder in text for folder in (":/", '"/', " /", "/tmp", "/home", "/root"))


@pytest.mark.parametrize("file", ["README.md", "configs/cifar10.yaml"])
def test_means_are_quoted_as_the_runs_have_them(file):
    text = " ".join((ROOT / file).read_text("utf-8").replace("\n#", "\n").split())
    for patch in TOKENS:
        for twin in TWINS:
            assert f"{top1_of(patch, twin).mean():.1f}%" in text
