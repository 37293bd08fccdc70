"""Whole models: what is timed, what is promised, and how it is shown."""

import json
import re
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from lab.bench.samples import ENVIRONMENT, draw, make_timing

from flashpoint.errors import InputError
from flashpoint.lab.bench import models
from flashpoint.lab.bench.check import slow_model
from flashpoint.lab.bench.entry import SpeedLimit
from flashpoint.lab.bench.memory import Peak
from flashpoint.lab.bench.models import make_step, measure_model
from flashpoint.lab.bench.panels import arrange
from flashpoint.lab.bench.plan import Request, select_items, select_models
from flashpoint.lab.bench.result import ModelMeasurement, ModelRow, Result
from flashpoint.lab.bench.result_file import from_json, to_json
from flashpoint.lab.bench.suites import MODEL_LIMITS, ModelCase
from flashpoint.lab.bench.timing import Budget
from flashpoint.lab.training.step import Step
from flashpoint.models.registry import model_config
from flashpoint.models.vit import ViT

needs_timm = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")
TINY = ModelCase(model="vit_ti16", batch=2, image_size=32, device="cpu")
LIMIT = SpeedLimit(rivals=("softmax",), must=1.2, aim=1.4)
REQUEST = Request(device="cuda", suite="vit-model", dtypes=("bf16",))


def make_model_row(ours_s=0.1, theirs_s=0.13, **changes):
    row = ModelRow(
        case=ModelCase(model="vit_s8", batch=256),
        limits=(LIMIT,),
        measurements=(
            ModelMeasurement(attention="relu", timing=make_timing(ours_s), peak=Peak(9 * 10**9)),
            ModelMeasurement(
                attention="softmax", timing=make_timing(theirs_s), peak=Peak(12 * 10**9)
            ),
        ),
    )
    return replace(row, **changes)


def make_result(*rows):
    return Result(environment=ENVIRONMENT, models=rows)


def test_twins_are_timed_and_nothing_is_promised_of_unknown_cases():
    said = []
    row = measure_model(TINY, Budget(rounds=2, seconds=0.1), said.append, has_memory=True)
    assert [found.attention for found in row.measurements] == ["relu", "softmax", "timm"]
    assert row.images_per_s("relu") > 0
    assert row.speedup == pytest.approx(
        row.of("softmax").timing.median_s / row.of("relu").timing.median_s
    )
    assert (row.limits, slow_model(row)) == ((), None)
    assert said[-1] == "vit_ti16, 2 images: time"


@pytest.mark.parametrize("attention", ["relu", "softmax"])
def test_a_step_trains(attention, monkeypatch):
    made = []
    monkeypatch.setattr(models, "Step", lambda *given: made.append(Step(*given)) or made[-1])
    step = make_step(TINY, attention)
    model = made[0].model.module
    assert model.config.qk_norm == "layer"
    assert model.config.attention.activation == attention
    for _ in range(3):
        step()
    counts = made[0].tally.read()
    assert (counts.good, counts.bad) == (3, 0)
    torch.manual_seed(0)
    fresh = type(model)(model.config)
    pairs = zip(fresh.parameters(), model.parameters(), strict=True)
    assert sum(not torch.equal(a, b) for a, b in pairs) > 10


@needs_timm
def test_model_of_timm_has_our_sizes_and_trains():
    ours = ViT(model_config("vit_ti16", image_size=32, qk_norm="layer"))
    theirs = models.timm_model(ours.config)
    counts = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    config = ours.config
    biases = 2 * config.depth * config.width // config.num_heads  # of the norms of q and k
    assert counts[1] == counts[0] + biases
    assert theirs.patch_embed.num_patches == config.grid**2
    assert theirs.blocks[0].attn.fused_attn
    make_step(TINY, "timm")()


def test_missing_timm_is_a_reason(monkeypatch):
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    row = measure_model(TINY, Budget(rounds=2, seconds=0), lambda _: None, has_memory=False)
    assert row.of("timm").skipped == "timm is not installed; pip install timm"
    assert slow_model(row) is None


def test_promise_over_timm_is_one_of_its_own():
    ours, theirs = make_model_row().measurements
    timm = replace(theirs, attention="timm")
    limits = (LIMIT, SpeedLimit(rivals=("timm",), must=1.45))
    row = make_model_row(measurements=(ours, theirs, timm), limits=limits)
    assert slow_model(row) == "1.30x as fast as timm, limit 1.45x"
    assert slow_model(replace(row, measurements=(ours, theirs))) is None
    text = draw(make_result(row))
    assert "<1.45" in text
    assert max(map(len, text.splitlines())) <= 80
    assert from_json(to_json(make_result(row))) == make_result(row)


def test_files_with_one_limit_are_read():
    data = json.loads(to_json(make_result(make_model_row())))
    (row,) = data["models"]
    row["limit"] = row.pop("limits")[0]
    assert from_json(json.dumps(data)).models[0].limits == (LIMIT,)


def test_suite_states_its_limits():
    cases = select_models(REQUEST)
    assert [(case.model, case.batch) for case in cases] == [("vit_s16", 1024), ("vit_s8", 256)]
    found = [[(one.must, one.aim) for one in limits] for limits in MODEL_LIMITS.values()]
    assert found == [[(1.12, 1.22), (1.35, None)], [(1.2, 1.4), (1.45, None)]]
    assert {limits[1].rivals for limits in MODEL_LIMITS.values()} == {("timm",)}
    assert tuple(MODEL_LIMITS) == cases
    assert select_items(REQUEST, ("flashpoint",)) == ()
    assert select_models(replace(REQUEST, suite="vit")) == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "forward", "causal": True}, "takes no --mode, --causal"),
        ({"device": "cpu", "dtypes": ("bf16", "fp32")}, "is for --device cuda, the device is cpu"),
        ({"dtypes": ("fp32",)}, "in bf16, and takes no --dtype"),
    ],
)
def test_words_that_mean_nothing_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        select_models(replace(REQUEST, **changes))


def test_promises_are_kept_broken_or_cannot_be_seen():
    assert slow_model(make_model_row()) is None
    slow = make_model_row(theirs_s=0.11)
    assert re.search(r"1\.10x .*softmax.* 1\.20x", slow_model(slow))
    ours, theirs = make_model_row().measurements
    alone = make_model_row(measurements=(ours, replace(theirs, timing=None, skipped="no memory")))
    assert slow_model(alone).endswith("no result of softmax")
    none = make_model_row(measurements=(replace(ours, timing=None, skipped="no memory"), theirs))
    assert slow_model(none).endswith("no result: no memory")


def test_file_keeps_everything_and_says_more_for_other_readers():
    result = make_result(make_model_row(), make_model_row(limits=()))
    text = to_json(result)
    assert from_json(text) == result
    first = json.loads(text)["models"][0]
    assert first["speedup"] == pytest.approx(1.3)
    assert first["measurements"][0]["images_per_s"] == pytest.approx(2560)


def test_table_shows_both_twins():
    text = draw(make_result(make_model_row()))
    for part in ("vit_s8, 256 images", "2560 images/s", "1.30x", ">=1.20", "9.0 GB", "12.0 GB"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 80
    ours, theirs = make_model_row().measurements
    lost = make_model_row(measurements=(ours, replace(theirs, timing=None, skipped="no memory")))
    assert "No softmax: no memory (vit_s8, 256 images)." in draw(make_result(lost))


def test_figure_has_a_panel_of_models():
    (line,) = arrange(make_result(make_model_row()))
    (panel,) = line
    assert (panel.title, panel.unit) == ("Training step of whole models, bf16", "images/s")
    assert [bar.provider for bar in panel.groups[0].bars] == ["flashpoint", "sdpa"]
    assert panel.groups[0].speedup == pytest.approx(1.3)
