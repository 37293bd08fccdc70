"""Twelve studies with findings as they might come out, made up."""

import dataclasses
import math

from lab.report.run_folders import add_attention, make_run
from lab.report.sample_sections import around, chart, section, trials_of, verdict

from flashpoint.lab.runs.findings import DataTable, Findings, Series
from flashpoint.lab.runs.run_files import read_runs

ACTIVATIONS = ("relu", "relu2", "gelu", "softplus", "identity", "relu6", "sigmoid")
ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
LENGTHS = tuple(2**n for n in range(4, 15))
EVIL = "<script>alert(1)</script>"


def scaling():
    flops = (2e15, 7e15, 3e16, 1.2e17, 4e17)
    relu = [0.62, 0.69, 0.735, 0.771, 0.79]
    softmax = [0.63, 0.695, 0.742, 0.774, 0.801]
    pair = [around("relu / L", flops, relu, 0.006), around("softmax", flops, softmax, 0.005)]
    transfer = [
        around("relu / L", flops, [v - 0.1 for v in relu], 0.015),
        around("softmax", flops, [v - 0.08 for v in softmax], 0.012),
    ]
    axes = {"x_is_log": True, "y_format": "percent"}
    rows = [
        (size, kind, f, a, a - 0.09)
        for size, f, r, s in zip(
            ("S/32", "S/16", "B/32", "B/16", "L/16"), flops, relu, softmax, strict=True
        )
        for kind, a in (("relu / L", r), ("softmax", s))
    ]
    head = ("size", "attention", "training FLOPs", "top-1", "10-shot")
    return section(
        "scaling",
        "Does relu / L follow softmax as models grow?",
        "paper 1, figure 1",
        "ReLU attention divided by sequence length approaches or matches softmax attention in "
        "accuracy against compute, from S/32 to L/16.",
        [
            verdict("relu / L is within 1 point of softmax at every size", "supports", -0.62, 0.31,
                    (-1.0, math.inf)),
            verdict("the gap does not grow with size", "undecided", 0.1, 0.6, (-math.inf, 0.25),
                    "points per factor 10 of FLOPs"),
        ],
        [
            chart("scaling-accuracy", "Accuracy against compute", "training FLOPs", "top-1", pair,
                  **axes),
            chart("scaling-transfer", "10-shot transfer", "training FLOPs", "accuracy", transfer,
                  **axes),
        ],
        [DataTable(name="sizes", title="By size", head=head, rows=rows)],
        ["Models are smaller than the paper's; the smallest has 200 thousand parameters."],
    )  # fmt: skip


def length_power():
    charts = []
    for tokens in (49, 196, 784):
        series = []
        for i, name in enumerate(ACTIVATIONS):
            best = 0.92 - 0.006 * i - (0.08 if name == "identity" else 0)
            y = [best - 0.09 * (a - 1) ** 2 - 0.01 * (a < 0.3) for a in ALPHAS]
            series.append(around(name, ALPHAS, y, 0.004 + 0.002 * i))
        softmax = Series(name="softmax", x=(0, 2), y=(0.925, 0.925), is_dashed=True)
        charts.append(
            chart(f"length-power-{tokens}", f"{tokens} tokens", "alpha", "top-1",
                  [*series, softmax], y_format="percent")
        )  # fmt: skip
    return section(
        "length-power",
        "Which power of the length, which activation?",
        "paper 1, figure 2",
        "The best results come with alpha close to 1; no activation is clearly best there.",
        [
            verdict("the best alpha of relu is near 1", "supports", 0.97, 0.09, (0.75, 1.25), ""),
            verdict("no activation is clearly best at alpha 1", "contradicts", 2.1, 0.5,
                    (-math.inf, 1.0)),
            verdict("without an activation accuracy is lost", "supports", 8.3, 1.9, (1, math.inf)),
        ],
        charts,
        trials=trials_of(("activation", "alpha", "tokens", "seed"), ("top1", "loss", "seconds"),
                         rows=312),
    )  # fmt: skip


def qk_norm():
    names = ("relu", "relu2", "softmax")
    series = [
        around("with qk-norm", names, (0.912, 0.905, 0.921), 0.004, has_line=False),
        around("without", names, (0.908, 0.871, 0.919), 0.009, has_line=False),
    ]
    return section(
        "qk-norm",
        "Does pointwise attention need qk-norm?",
        "paper 1, figure 3",
        "Removing qk-layernorm makes no great difference for relu and relu2 at these sizes.",
        [
            verdict("relu loses at most 1 point", "supports", 0.42, 0.38, (-math.inf, 1.0)),
            verdict("relu2 loses at most 1 point", "contradicts", 3.4, 1.2, (-math.inf, 1.0)),
        ],
        [chart("qk-norm", "With and without", "attention", "top-1", series, y_format="percent")],
    )


def gate():
    x = ("alpha 0", "alpha 0.5", "alpha 1")
    series = [
        around("gate", x, (0.83, 0.887, 0.915), 0.006),
        around("no gate", x, (0.79, 0.872, 0.911), 0.005),
    ]
    rows = [("gate", 1.087, 1.081, 1.094), ("paper", 1.093, None, None)]
    head = ("", "time", "low", "high")
    return section(
        "gate",
        "Does a gate remove the need for the factor?",
        "paper 1, figure 4",
        "Adding a gated unit does not remove the need for the factor and costs 9.3%.",
        [
            verdict("with a gate, alpha 1 beats alpha 0", "supports", 8.5, 1.0, (0, math.inf)),
            verdict("a gate costs between 5% and 15% of the time", "undecided", 8.7, 0.65, (5, 15),
                    "% of the time", "2 of at least 3 seeds."),
        ],
        [chart("gate", "A gate by alpha", "", "top-1", series, y_format="percent")],
        [DataTable(name="cost", title="What the gate costs", head=head, rows=rows)],
    )  # fmt: skip


def memory_slots():
    x = (32, 64, 128, 256, 512, 1024, 2048, 3072, 4096)
    series = [
        around("relu", x, [31 + 0.4 * math.log2(v / 32) for v in x], 0.2),
        around("softmax", x, [30.2 + 0.3 * math.log2(v / 32) for v in x], 0.25),
        around("softmax + LN", x, [31 + 0.38 * math.log2(v / 32) for v in x], 0.22),
    ]
    return section(
        "memory-slots",
        "Are a memory and an FFN the same?",
        "paper 2, figure 2",
        "Softmax with a layer norm equals relu in the FFN; with very many slots relu is better.",
        [
            verdict("softmax + LN is within 0.3 BLEU of relu at 1024 slots", "undecided", -0.1,
                    0.38, (-0.3, 0.3), "BLEU"),
            verdict("relu beats softmax + LN at 4096 slots", "undecided", None, 0, (0, math.inf),
                    "BLEU", "Runs that it needs are missing."),
        ],
        [chart("memory-slots", "BLEU by slots", "slots", "BLEU", series, x_is_log=True)],
    )  # fmt: skip


def relu_attention():
    names = ("softmax", "relu, no factor", "relu, factor", "relu, factor and penalty")
    values = zip(names, (34.2, 3.1, 33.2, 34.5), (0.2, 1.4, 0.3, 0.25), strict=True)
    series = [around(name, (name,), (v,), half, has_line=False) for name, v, half in values]
    return section(
        "relu-attention",
        "What does relu attention need to translate?",
        "paper 2, table 3",
        "Without the factor it does not converge; with it, it comes close; the penalty closes it.",
        [
            verdict(
                "the factor gains at least 5 BLEU", "supports", 30.1, 1.5, (5, math.inf), "BLEU"
            )
        ],
        [chart("relu-attention", "Ablation", "", "BLEU", series)],
    )


def document_length():
    x = (128, 256, 512, 1024, 2048)
    series = [
        around("relu", x, (28.1, 28.9, 29.6, 30.3, 30.2), 0.3),
        around("softmax", x, (28.2, 28.8, 29.1, 29.2, 28.6), 0.3),
    ]
    return section(
        "document-length",
        "Does relu gain with the length of documents?",
        "paper 2, figure 4",
        "Equal at 128 and 256 tokens, better from 512 on, by 1.15 BLEU at 1024.",
        [verdict("relu gains at least 0.5 BLEU at 1024", "supports", 1.1, 0.4, (0.5, 99), "BLEU")],
        [chart("document-length", "By length", "tokens", "BLEU", series, x_is_log=True)],
    )


def variance():
    series = []
    for name, power in (("relu", -1), ("softmax", -1), ("relu, unscaled", 1), ("relu2", -1)):
        y = [0.5 * n**power * (5.4 if name == "softmax" else 1) for n in LENGTHS]
        measured = [v * (1 + 0.05 * (-1) ** i) for i, v in enumerate(y)]
        low, high = [v * 0.9 for v in measured], [v * 1.1 for v in measured]
        series.append(Series(name=name, x=LENGTHS, y=measured, low=low, high=high, has_line=False))
        series.append(Series(name=f"{name}, theory", x=LENGTHS, y=y, is_dashed=True))
    log = {"x_is_log": True, "y_is_log": True}
    rows = [(n, 0.5 / n, 0.5 / n * 1.03, 0.03) for n in LENGTHS]
    head = ("n", "theory", "measured", "relative error")
    return section(
        "variance",
        "How large is the output at the start?",
        "both papers",
        "Divided by L, relu's output has variance 1 / (2 L); unscaled it grows as L/2.",
        [verdict("the closed form holds within 5%", "supports", 1.3, 0.4, (0, 5), "%")],
        [chart("variance", "Variance of the output", "keys", "variance", series, **log)],
        [
            DataTable(name="relu", title="relu, alpha 1", head=head, rows=rows),
            DataTable(name="every", title="Every draw", head=head, rows=4 * rows),
        ],
    )


def learned_length():
    steps = tuple(range(0, 3000, 100))
    series = [
        around(f"from {start:g}", steps,
               [1 + (start - 1) * math.exp(-s / 900) for s in steps], 0.04)
        for start in (0.0, 0.5, 1.0, 1.5)
    ]  # fmt: skip
    layers = [f"learned.alpha_layer{i}" for i in range(12)]
    head = ("alpha", "seed", "top1", *layers, "status")
    rows = [
        ("learned per head from 0.5", 0, 0.7431, *(1 / (i + 3) for i in range(12)), "finished")
    ]
    return section(
        "learned-length",
        "Can the factor be learned?",
        "open",
        "If the length factor matters, a learned alpha should come to about 1 from any start.",
        [verdict("alpha from 0 comes to 1", "contradicts", 0.62, 0.11, (0.9, 1.1), "")],
        [chart("learned-length", "Alpha while it learns", "step", "alpha", series)],
        [DataTable(name="layers", title="By layer", head=head, rows=rows)],
    )


def longer_than_trained():
    x = (64, 128, 256, 512)
    series = [
        around("relu, visible", x, (0.91, 0.88, 0.8, 0.66), 0.01),
        around("relu, trained length", x, (0.91, 0.86, 0.71, 0.4), 0.02),
        around("softmax", x, (0.92, 0.9, 0.84, 0.75), 0.01),
    ]
    axes = {"x_is_log": True, "y_format": "percent"}
    return section(
        "longer-than-trained",
        "What happens at lengths that were not trained?",
        "open",
        "A normalizer that follows the length should carry over to other lengths.",
        [verdict("relu loses no more than softmax at 4 times the length", "contradicts", -13, 2.5,
                 (-2, math.inf))],
        [chart("longer", "Trained at 64 tokens", "tokens at test", "top-1", series, **axes)],
    )  # fmt: skip


def retrieval():
    x = (32, 64, 128, 256)
    series = [
        around("relu", x, (0.99, 0.97, 0.88, 0.6), 0.03),
        around("softmax", x, (1.0, 0.99, 0.97, 0.93), 0.01),
        around("sigmoid", x, (0.99, 0.96, 0.9, 0.71), 0.03),
    ]
    axes = {"x_is_log": True, "y_format": "percent"}
    return section(
        "retrieval",
        "Does pointwise attention find a needle?",
        "open",
        "Without a row sum one key cannot suppress the others, so recall should suffer.",
        [verdict("relu recalls within 5 points of softmax at 256", "contradicts", -33, 4,
                 (-5, math.inf), "points of recall")],
        [chart("retrieval", "Recall by length", "pairs", "recall", series, **axes)],
    )  # fmt: skip


def speed():
    x = (196, 1024, 4096, 16384)
    series = [
        Series(name="kernel, forward", x=x, y=(1.05, 1.21, 1.33, 1.36)),
        Series(name="kernel, backward", x=x, y=(1.02, 1.11, 1.18, None)),
        Series(name="whole model", x=x, y=(1.01, 1.04, 1.12, 1.25)),
    ]
    return section(
        "speed",
        "Does the gain arrive in practice?",
        "open",
        "Fewer operations a score should show in the time of whole models at long lengths.",
        [verdict("a ViT at 4096 tokens trains 10% faster", "undecided", None, 0, (1.1, math.inf),
                 "times", "No benchmark of this machine is stored.")],
        [chart("speed", "Speed-up over SDPA", "tokens", "times", series, x_is_log=True)],
        runs=[],
        trials=DataTable(name="trials", title="All trials", head=("trial", "status"), rows=[]),
    )  # fmt: skip


STUDIES = (
    *(scaling, length_power, qk_norm, gate, memory_slots, relu_attention, document_length),
    *(variance, learned_length, longer_than_trained, retrieval, speed),
)


def hostile():
    """A study whose every text tries to be markup."""
    study = scaling()
    trials = DataTable(name=EVIL, title=EVIL, head=(EVIL, "status"), rows=[(EVIL, EVIL)])
    charts = [
        dataclasses.replace(
            chart,
            **{"title": EVIL, "caption": EVIL, "x_title": EVIL, "y_title": EVIL},
            series=[
                dataclasses.replace(series, name=name)
                for series, name in zip(chart.series, (f"<b>{EVIL}</b>", "--ink"), strict=True)
            ],
        )
        for chart in study.findings.charts
    ]
    verdicts = [
        dataclasses.replace(v, claim=EVIL, unit=EVIL, note=EVIL) for v in study.findings.verdicts
    ]
    findings = Findings(verdicts=verdicts, charts=charts, tables=[trials], notes=[EVIL])
    return dataclasses.replace(
        study,
        **{"name": f"{EVIL} &", "question": EVIL, "source": EVIL, "claim": EVIL},
        **{"findings": findings, "trials": trials, "commands": (EVIL,)},
        **{"scope": EVIL, "departures": EVIL},
    )


def make_studies(folder):
    """All twelve; the first has two runs, one of them with attention, the second sixty."""
    sections = [make() for make in STUDIES]
    few = [
        add_attention(make_run(folder / "scaling" / "relu-0")),
        make_run(folder / "scaling" / "softmax-0", attention="softmax", seed=1),
    ]
    many = [
        make_run(
            folder / "length-power" / f"{name}-{seed}",
            **{"attention": name, "top1": 0.8 + 0.01 * (seed % 7), "seed": 0.01 * seed},
        )
        for name in ACTIVATIONS[:6]
        for seed in range(10)
    ]
    sections[0] = dataclasses.replace(
        sections[0],
        runs=read_runs(few),
        factors=[{"attention": "relu", "seed": 0}, {"attention": "softmax", "seed": 0}],
        environments=[_machine("an H200", 1), _machine("an H200", 2)],
        departures="At small: images of 32 x 32.",
    )
    sections[1] = dataclasses.replace(
        sections[1],
        runs=read_runs(many),
        factors=[{"activation": n, "seed": s} for n in ACTIVATIONS[:6] for s in range(10)],
        environments=[_machine("an H200" if i % 10 else "a CPU", i % 10) for i in range(60)],
    )
    return sections


def _machine(device, minute):
    return {
        **{"device": device, "torch": "2.13.0", "python": "3.11.9", "commit": "273871d145c4"},
        "time_utc": f"2026-11-15T18:{minute:02d}:00+00:00",
    }
