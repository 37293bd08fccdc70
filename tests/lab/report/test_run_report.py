"""The page of runs: what stands in it, that text is escaped, that nothing is fetched."""

import dataclasses
import json
import re
import subprocess
import sys

import pytest
from lab.report.parsed_page import Page
from lab.report.run_folders import add_attention, make_run

from flashpoint.errors import InputError
from flashpoint.lab.report.run_report import describe_attention, report_runs
from flashpoint.lab.runs.run_files import read_runs


@pytest.fixture
def twins(tmp_path):
    relu = make_run(tmp_path / "relu", top1=0.97)
    softmax = make_run(tmp_path / "softmax", attention="softmax", top1=0.98, seed=1)
    return [relu, softmax]


def test_page_has_table_curves_environment_and_commands(twins):
    page = Page(report_runs(twins, title="Twins"))
    assert page.of("h1", "title") == ["Twins", "Twins"]
    assert page.of("h2") == ["Runs", "Curves", "Environment", "To repeat it"]
    cells = page.of("td", "span", "th")
    for wanted in ("97.00%", "98.00%", "99.00%", "0.1000", "1.1000", "15.0 s", "1.23 k", "203 k"):
        assert wanted in cells
    assert "a CPU" in cells
    assert "2.13.0" in cells
    assert "commit" not in cells
    (commands,) = page.of("code")
    for run in twins:
        assert f"flashpoint train {run}/config.yaml --out {run}-again" in commands
        assert f"flashpoint evaluate {run}" in commands
    assert f"flashpoint report {twins[0]} {twins[1]}" in commands


def test_best_of_a_column_is_marked(twins):
    marked = re.findall(r'<span class="best">([^<]*)</span>', report_runs(twins, title=""))
    assert marked == ["0.1000", "98.00%"]  # equal top-5 are marked nowhere


def test_one_run_is_the_best_of_nothing(tmp_path):
    assert 'class="best"' not in report_runs([make_run(tmp_path / "one")], title="")


def test_curves_are_drawn_by_step_and_by_seconds(twins):
    figures = Page(report_runs(twins, title="")).figures
    accuracy, validation_loss, training_loss = figures[:3]
    relu, softmax = accuracy["data"]
    assert (relu["name"], softmax["name"]) == ("relu", "softmax")
    assert relu["x"] == [100, 200, 300]
    assert relu["y"] == pytest.approx([0.97 / 3, 2 * 0.97 / 3, 0.97])
    assert validation_loss["data"][1]["y"][0] > 1
    faint, smooth = training_loss["data"][:2]
    assert len(faint["x"]) == 300
    assert len(smooth["x"]) == 40
    assert sum(smooth["y"]) / 40 == pytest.approx(sum(faint["y"]) / 300, rel=0.05)
    by_time = figures[3]["data"][0]
    assert by_time["x"] == pytest.approx([5.0, 10.0, 15.0])  # validation does not state its time


@pytest.mark.parametrize(
    ("attention", "words"),
    [
        ("relu4/sum", "relu4/sum"),
        ({"activation": "relu4", "normalize": "sum", "floor": 1e-3}, "relu4/sum"),
        ({"activation": "relu4", "normalize": "sum", "bias": 2}, "relu4+2/sum"),
        ({"activation": "sigmoid", "bias": -2.0}, "sigmoid, bias -2.0"),
        ({"activation": "relu2", "normalize": "sum", "gain": 2.0}, "relu2/sum, gain 2.0"),
        ({"activation": "relu", "normalize": "length", "alpha": 0.5}, "relu, alpha 0.5"),
        ({"activation": "silu", "length": "keys", "scale": 1.0}, "silu, length keys, scale 1.0"),
    ],
)
def test_label_says_what_divides(tmp_path, attention, words):
    (run,) = read_runs([make_run(tmp_path / "run")])
    config = {"model": {"name": "vit", "attention": attention}}
    assert describe_attention(dataclasses.replace(run, config=config)) == words


def test_label_names_cross_attention_where_it_is_another(tmp_path):
    (run,) = read_runs([make_run(tmp_path / "run")])
    labels = []
    for cross in (None, "softmax", {"activation": "relu2", "normalize": "sum"}):
        config = {"model": {"attention": "relu4/sum", "cross_attention": cross}}
        labels.append(describe_attention(dataclasses.replace(run, config=config)))
    others = ["relu4/sum; cross softmax", "relu4/sum; cross relu2/sum"]
    assert labels == ["relu4/sum", *others]


def test_attention_is_shown_where_its_files_are(twins):
    add_attention(twins[0])
    page = Page(report_runs(twins, title=""))
    assert "Attention" in page.of("h2")
    assert (
        sum(address.startswith("data:image/png;base64,iVBOR") for address in page.addresses) == 1
    )
    seen = ": step 900, 256 images of digits, 196 tokens. Dead heads (layer.head): 1.1."
    assert seen in page.of("p")
    heat = [f["data"][0] for f in page.figures if f["data"][0]["type"] == "heatmap"]
    assert len(heat) == 5
    assert heat[0]["z"] == [[0.5, 0.5, 0.5], [0.5, 1.0, 0.5]]
    assert heat[2]["z"][1] == [1.5, None, 1.5]


def test_tiles_are_left_out_where_there_is_only_one(twins):
    add_attention(twins[0], num_keys=64)
    page = report_runs(twins, title="")
    assert "Entropy of a row" in page
    assert "Zero tiles, 64" not in page


def test_text_of_users_is_escaped(tmp_path):
    evil = "<script>alert(1)</script>"
    run = make_run(tmp_path / "a" / "<b>&", attention=evil, environment={"device": evil})
    page = report_runs([run], title=f"{evil}&")
    assert evil not in page
    assert "<b>&" not in page
    parsed = Page(page)
    assert parsed.of("h1") == [f"{evil}&"]
    assert evil in parsed.of("td")
    assert parsed.figures[0]["data"][0]["name"] == "&lt;b&gt;&amp;"  # plotly reads markup


def test_nothing_is_fetched(twins):
    page = report_runs([add_attention(twins[0])], title="")
    for address in Page(page).addresses:
        assert address.startswith(("#", "data:"))
    assert "default-src &#x27;none&#x27;" in page
    assert page.count("plotly.js v") == 1


def test_runs_of_one_name_are_told_apart(tmp_path):
    runs = [make_run(tmp_path / s / "relu", seed=i) for i, s in enumerate(("one", "two"))]
    page = Page(report_runs(runs, title=""))
    assert {"one/relu", "two/relu"} <= {f["name"] for f in page.figures[0]["data"]}


def test_what_differs_between_machines_stands_by_run(tmp_path):
    runs = [
        make_run(tmp_path / name, environment={"device": name, "torch": "2.13.0"})
        for name in ("slow", "fast")
    ]
    body = report_runs(runs, title="").partition('id="environment"')[2]
    assert body.index("2.13.0") < body.index("differences")
    assert re.search(r"<th[^>]*>device</th><td[^>]*>slow</td><td[^>]*>fast</td>", body)


def test_run_that_goes_on_is_shown_as_far_as_it_is(tmp_path):
    run = make_run(tmp_path / "live")
    (run / "record.json").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    page = Page(report_runs([run], title=""))
    assert "90.00%" in page.of("span")


def test_run_without_any_line_is_shown(tmp_path):
    run = make_run(tmp_path / "new")
    (run / "record.json").unlink()
    (run / "metrics.jsonl").unlink()
    assert "Not validated yet: new." in report_runs([run], title="")


def test_loss_that_is_not_finite_is_left_out(tmp_path):
    run = make_run(tmp_path / "nan")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 301, "loss": NaN, "seconds": 16}\n')
    training = Page(report_runs([run], title="")).figures[2]
    assert len(training["data"][0]["x"]) == 300


def test_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is not a run's folder: it has no config\.yaml"):
        report_runs([tmp_path], title="")
    with pytest.raises(InputError, match="no run's folder is given"):
        report_runs([], title="")


def test_broken_files_are_named(tmp_path):
    run = make_run(tmp_path / "broken")
    (run / "metrics.jsonl").write_text('{"kind"\n{}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 1 cannot be read: Expect"):
        report_runs([run], title="")
    (run / "metrics.jsonl").unlink()
    (run / "record.json").write_text("[]")
    with pytest.raises(InputError, match=r"record\.json: it must hold a section, not \[\]"):
        report_runs([run], title="")
    (run / "record.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(InputError, match=r"record\.json is not UTF-8: byte 0 is 0xff"):
        report_runs([run], title="")


def test_report_imports_no_torch(twins):
    code = (
        "import sys; from pathlib import Path;"
        "from flashpoint.lab.report.run_report import report_runs;"
        f"report_runs([Path({str(twins[0])!r})], title='');"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_run_on_text_has_its_own_metrics(tmp_path):
    numbers = {"loss": 1.82, "token_accuracy": 0.6653}
    run = make_run(
        tmp_path / "text", unit="tokens", validation=numbers, best={"step": 300, **numbers}
    )
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line.pop("top1", None) is not None:
            del line["top5"]
            line["token_accuracy"] = 0.6
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report_runs([run], title="Text")
    assert "Token accuracy on validation data: relu <strong>66.53%</strong>." in page
    assert "Not validated yet" not in page
    for part in ("tokens/s", "66.53% at step 300", "Accuracy on validation data"):
        assert part in page
    assert "top-1" not in page
