"""README's speeds are those of the stored benchmarks."""

import pytest
from stored_results import ROOT, benchmark, between

README, LOG, CHANGES = (
    " ".join((ROOT / file).read_text("utf-8").split())
    for file in ("README.md", "docs/log.md", "CHANGES.md")
)
BEFORE = {"vit_s16": (95.19, 105.17, 599.4), "vit_s8": (106.02, 122.41, 1053.1)}
"""At commit d193dfc, whose files made room for those that are stored: milliseconds of a step with
relu and with softmax, microseconds of our kernels with norms, forward and backward."""
NUM_LAYERS = 12


def speedups(name, **wanted):
    """Of the cases that have these fields, in the order of the file."""
    rows = [row for row in benchmark(name)["rows"] if not row["is_overhead"]]
    cases = [(row["case"] | row["case"]["shape"], row["speedup"]) for row in rows]
    return [
        speedup
        for case, speedup in cases
        if all(case.get(field) == value for field, value in wanted.items())
    ]


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_table_of_long_sequences(mode, dim):
    cells = [
        speedups("long", mode=mode, dim=dim, length=length, activation="relu", causal=causal)[0]
        for length, causal in ((1024, False), (4096, False), (16384, False), (4096, True))
    ]
    assert f"| {mode}, head dim {dim} | " + " | ".join(f"{x:.2f}" for x in cells) in README


@pytest.mark.parametrize(("norm", "words"), [("none", ""), ("layer", " with qk-layernorm")])
@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_table_of_vit_lengths(mode, norm, words):
    lengths = (49, 196, 577, 784)
    assert "| tokens | " + " | ".join(map(str, lengths)) in README
    cells = [
        f"{speedup:.2f}"
        for length in lengths
        for speedup in speedups("vit", mode=mode, length=length, qk_norm=norm)
    ]
    assert f"| {mode}{words} | " + " | ".join(cells) in README


def test_rival_at_49_tokens_is_the_memory_efficient_one():
    rows = [row for row in benchmark("vit")["rows"] if row["case"]["shape"]["length"] == 49]
    plain = [row for row in rows if not row["is_overhead"] and row["case"]["qk_norm"] == "none"]
    rivals = [[one for one in row["measurements"] if "sdpa" in one["provider"]] for row in plain]
    fastest = [min(row, key=lambda one: one["timing"]["median_s"]) for row in rivals]
    assert [one["provider"] for one in fastest] == ["sdpa_efficient"] * 2


def test_whole_steps():
    ours = [model["measurements"][0] for model in benchmark("vit_model")["models"]]
    theirs = [model["measurements"][1] for model in benchmark("vit_model")["models"]]
    assert [m["attention"] for m in (*ours, *theirs)] == ["relu"] * 2 + ["softmax"] * 2
    ratios = [
        b["timing"]["median_s"] / a["timing"]["median_s"]
        for a, b in zip(ours, theirs, strict=True)
    ]
    rates = [f"{m['images_per_s']:,.0f} a second" for m in ours]
    assert f"{ratios[0]:.2f} (S/16, 1024 images, {rates[0]})" in README
    assert f"{ratios[1]:.2f} (S/8, 256 images, {rates[1]})" in README
    shares = [
        a["peak"]["extra_bytes"] / b["peak"]["extra_bytes"]
        for a, b in zip(ours, theirs, strict=True)
    ]
    assert f"with {shares[0]:.2f} and {shares[1]:.2f} of softmax's memory" in README


def times_of_layer(length):
    """Microseconds of our kernels with norms, forward and backward."""
    return sum(
        1e6 * one["timing"]["median_s"]
        for row in benchmark("vit")["rows"]
        for one in row["measurements"]
        if (row["case"]["shape"]["length"], row["case"]["qk_norm"]) == (length, "layer")
        and one["provider"] == "flashpoint"
    )


def test_log_says_how_far_whole_steps_can_be_trusted():
    steps, spreads, against, saved, plausible = [], [], [], [], []
    models = benchmark("vit_model")["models"]
    for model, length in zip(models, (196, 784), strict=True):
        ours, theirs = (one["timing"] for one in model["measurements"])
        step, softmax, layer = BEFORE[model["case"]["model"]]
        steps.append([1e3 * one["median_s"] for one in (ours, theirs)])
        spreads.append([theirs["p20_s"] / ours["p80_s"], theirs["p80_s"] / ours["p20_s"]])
        against.append(softmax / steps[-1][0])
        saved.append(layer - times_of_layer(length))
        halves = 2  # of a batch: a layer was timed on one
        plausible.append(softmax / (step - halves * NUM_LAYERS * saved[-1] / 1e3))
    (small, softmax_small), (large, softmax_large) = steps
    assert f"{small:.1f} ms against softmax's {softmax_small:.1f} (S/16" in LOG
    assert f"where steps take {large:.1f} and {softmax_large:.1f}:" in LOG
    assert spreads[0][0] < models[0]["limit"]["must"] < spreads[0][1]
    few, many = map(between, spreads)
    assert f"make {few} in 8 rounds (S/8: {many} in 7)" in LOG
    assert f"is met within the spread of a run, {few};" in README
    then = " and ".join(f"{one:.2f}" for one in against)
    assert f"ours would now be at {then}." in LOG
    assert f"of that earlier run it would be {then}." in CHANGES
    assert "save {:.0f} us a layer (196 tokens, 512 images) and {:.0f} (784".format(*saved) in LOG
    assert "that makes {:.2f} and {:.2f}, so that".format(*plausible) in LOG


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("forward", "costs the host {ours} us where SDPA's costs {theirs},"),
        ("recording", "with the graph recorded {ours} where SDPA's costs {theirs},"),
        ("backward", "a backward {ours} where SDPA's costs {theirs};"),
    ],
)
def test_cost_of_calling(mode, words):
    rows = [row for row in benchmark("vit")["rows"] if row["is_overhead"]]
    times = {"flashpoint": [], "sdpa": []}
    for row in rows:
        for measured in row["measurements"]:
            if row["case"]["mode"] == mode and measured["provider"] in times:
                times[measured["provider"]].append(1e6 * measured["timing"]["median_s"])
    ours, theirs = (between(found, 0) for found in times.values())
    assert words.format(ours=ours, theirs=theirs) in README


def test_slower_host_is_said_where_its_times_are():
    assert "where they cost 17 to 18, ours 42 to 43 where they cost 21 to 22;" in LOG
    assert "slower in this run than before, when forward cost 21 to 22 and 17 to 18" in README


def test_commits_are_those_of_the_files():
    long, vit, models = (benchmark(name)["environment"] for name in ("long", "vit", "vit_model"))
    assert vit["commit"] == models["commit"]
    assert f"Commit {long['commit'][:7]} but for ViTs ({vit['commit'][:7]})," in README
