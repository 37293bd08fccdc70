"""``flashpoint plan`` from the command line."""

import json
from pathlib import Path

import pytest
import yaml
from lab.evaluation.trained import call

from flashpoint.errors import InputError
from flashpoint.lab.cli.plan import plan
from flashpoint.lab.scaling.rates import stored_rates
from flashpoint.lab.training.config import ParallelConfig

ROOT = Path(__file__).parents[3]
MILLION = ("--model", "vit_l16", "--tokens", 2**20, "--gpus", 256)


def run(*arguments, columns=80):
    """What the verb prints."""
    return call(plan, *arguments, columns=columns)[0]


def lines_of(out, word):
    return [line.split() for line in out.splitlines() if word in line]


def test_every_split_is_listed_and_the_best_is_marked():
    out, err = call(plan, *MILLION, "--json", "-", columns=80)
    best, out = json.loads(out)["parallel"], err
    assert len(lines_of(out, "  ulysses")) == 4
    sizes = [2**power for power in range(1, 9)]
    rings = ["ring*" if size == best["sequence"] else "ring" for size in sizes]
    assert [line[0] for line in lines_of(out, "  ring")] == rings
    assert "Best (*): data {data} x sequence {sequence} by {strategy}".format(**best) in out
    assert "16 heads of vit_l16 cannot be divided among 32, 64, 128 or 256 ranks." in " ".join(
        out.split()
    )


def test_output_says_what_it_is_and_what_it_rests_on():
    out = " ".join(run(*MILLION).split())
    for part in (
        *("An estimate, not a measurement", "304 M parameters", "h200_long.json"),
        *("sequence/h200.json", "Given, not measured: 8 GPUs a node, 450 GB/s"),
        "Real steps take longer",
    ):
        assert part in out
    assert "taken as there" not in out  # a million tokens were measured


def test_tables_fit_a_usual_terminal():
    out = run(*MILLION)
    assert "…" not in out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    assert len(lines_of(out, "256 x 1 ")) == 1


def test_what_does_not_fit_is_marked_and_nothing_is_best():
    out = run("--model", "vit_l16", "--tokens", 2**20, "--gpus", 2, "--memory", 16)
    assert "Nothing fits into 16.0 GB a GPU: the least is" in " ".join(out.split())
    assert all(line[-1].endswith("+!") for line in lines_of(out, "gather"))
    assert "*" not in out


def test_links_memory_and_batch_are_the_users():
    slow = run(*MILLION, "--sequence", 16, "--network", 1, "--link", 10, "--batch", 16)
    assert "10 GB/s inside it, 1 GB/s between nodes" in " ".join(slow.split())
    assert "16 x 1,048,576 tokens" in " ".join(slow.split())


def test_json_holds_all_estimates_and_plot_is_written(tmp_path):
    out = tmp_path / "plan.json"
    figure = tmp_path / "plan.svg"
    said = run(*MILLION, "--sequence", 16, "--json", out, "--plot", figure, columns=300)
    assert said.splitlines()[-2:] == [
        f"{out}: 4 estimates",
        f"{figure}: time and memory of 4 estimates",
    ]
    data = json.loads(out.read_text())
    assert [one["choice"]["strategy"] for one in data["estimates"]] == [
        *("gather", "ring", "reduce", "ulysses")
    ]
    assert data["estimate"] is True
    assert "best: " in figure.read_text()


def test_json_on_stdout_leaves_the_rest_to_stderr(tmp_path):
    figure = tmp_path / "plan.svg"
    out, err = call(plan, *MILLION, "--sequence", 16, "--json", "-", "--plot", figure, columns=80)
    assert json.loads(out)["model"] == "vit_l16"
    assert "An estimate, not a measurement" in err
    assert err.splitlines()[-1] == f"{figure}: time and memory of 4 estimates"


@pytest.mark.parametrize(
    ("gpus", "options", "expected"),
    [
        (256, ("--sequence", 16), {"data": 16, "sequence": 16, "strategy": "ring"}),
        (256, ("--strategy", "ulysses"), {"data": 16, "sequence": 16, "strategy": "ulysses"}),
        (8, ("--tokens", 196), {"data": 8}),
    ],
)
def test_best_is_a_line_for_a_config(gpus, options, expected, tmp_path):
    out, err = call(plan, *MILLION, "--gpus", gpus, *options, "--json", "-", columns=80)
    (line,) = [line for line in err.splitlines() if line.startswith("parallel:")]
    section = yaml.safe_load(line)["parallel"]
    assert section == json.loads(out)["parallel"] == expected
    assert ParallelConfig(**section).sizes(gpus) == (
        *(expected["data"], expected.get("sequence", 1), 1),
    )


def test_line_for_a_config_says_that_training_does_not_recompute():
    out = " ".join(run(*MILLION, "--sequence", 8).split())
    assert "train, which does not recompute and so needs more memory: parallel: {data: 32" in out
    assert "does not recompute" not in run(*MILLION, "--sequence", 16)


def test_one_gpu_is_no_plural():
    arguments = ("--model", "vit_s16", "--tokens", 196, "--gpus", 1, "--gpus-per-node", 1)
    out = " ".join(run(*arguments, columns=200).split())
    assert "1 x 196 tokens on 1 GPU." in out
    assert "1 GPU a node" in out
    with pytest.raises(InputError, match="1 GPU cannot be divided into groups of 2"):
        run(*arguments, "--sequence", 2)


def test_rates_of_a_user_take_the_place_of_the_stored_ones():
    file = ROOT / "benchmarks" / "results" / "h200_long.json"
    out = " ".join(run(*MILLION, "--sequence", 16, "--rates", file).split())
    assert "Measured on one NVIDIA H200 (h200_long.json), bf16" in out
    assert "at the 1,048,576 tokens of the best, taken from 16,384" in out


@pytest.mark.parametrize(("strategy", "tokens"), [("ring", 2**16), ("ulysses", 2**20)])
def test_rates_are_those_of_what_the_best_computes_at_a_time(strategy, tokens):
    out = run(*MILLION, "--sequence", 16, "--strategy", strategy)
    rates = [stored_rates().attention(mode, 64, tokens) for mode in ("forward", "backward")]
    forward, backward = (f"{rate / 1e12:.0f}" for rate in rates)
    said = f"{forward} and {backward} TFLOP/s forward and backward at the {tokens:,} tokens of the"
    assert f"{said} best;" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "vit_x16"), "model 'vit_x16' is unknown. Did you mean"),
        (("--model", "reluformer_base"), "'reluformer_base' is not a model of images"),
        (
            ("--sequence", 32, "--strategy", "ulysses"),
            "16 heads of vit_l16 cannot be divided among 32",
        ),
        (("--tokens", 1000, "--sequence", 16), "1,000 tokens cannot be divided among 16 ranks"),
        (("--sequence", 24), "256 GPUs cannot be divided into groups of 24"),
        (("--batch", 3, "--sequence", 16), "3 samples cannot be divided among 16 groups"),
        (("--strategy", "rign"), "Did you mean 'ring'"),
        (("--rates", "missing.json"), "missing.json"),
        (("--plot", "figure.gif"), "--plot figure.gif must end in .png, .svg or .pdf"),
    ],
)
def test_what_cannot_be_is_one_line(arguments, said):
    with pytest.raises(InputError) as error:
        run(*MILLION, *arguments)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_help_says_what_to_type():
    out = run("--help", columns=100)
    assert "flashpoint plan --model vit_l16 --tokens 1048576 --gpus 256" in out
    assert "nothing runs" in " ".join(out.split())
