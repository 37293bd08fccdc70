"""Numbers of configs: every field declares its bounds, and nothing absurd gets past them."""

import dataclasses
import math
import re
import resource
import time
import typing
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lab.training import runs, text_runs

from flashpoint import HeadNorm
from flashpoint.bounds import Bounds, bounded_fields
from flashpoint.errors import InputError, describe
from flashpoint.lab.evaluation.search import Search
from flashpoint.lab.training import config_file
from flashpoint.lab.training.config import OptimizerConfig
from flashpoint.lab.training.memory_check import describe_memory
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.sharing import check_sharing
from flashpoint.lab.training.text import TextConfig
from flashpoint.lab.training.vision import VisionConfig, VisionTask
from flashpoint.models.registry import create_model
from flashpoint.models.reluformer import ReLUFormerConfig
from flashpoint.models.vit import ViTConfig

SECONDS = 5.0  # a refusal takes none of them; a hang takes all
LONGEST = 120.0  # of a step without values through hundreds of blocks


def members(hint):
    """A type, or those of a union or tuple, without what they are annotated with."""
    arguments = typing.get_args(hint)
    return [inner for one in arguments for inner in members(one)] if arguments else [hint]


def numeric_paths(record, prefix=""):
    """The class, name and dotted path of every field that can be a number, sections included."""
    for name, hint in typing.get_type_hints(record).items():
        for member in members(hint):
            if dataclasses.is_dataclass(member):
                yield from numeric_paths(member, f"{prefix}{name}.")
        if {int, float} & set(members(hint)):
            yield record, name, f"{prefix}{name}"


CLASSES = ((VisionConfig, ""), (TextConfig, ""), (ViTConfig, "model."), (Search, ""))
CLASSES = (*CLASSES, (ReLUFormerConfig, "model."))
FIELDS = [found for record, prefix in CLASSES for found in numeric_paths(record, prefix)]


@pytest.mark.parametrize(("record", "name"), sorted({(r, n) for r, n, _ in FIELDS}, key=str))
def test_every_number_of_a_config_has_bounds(record, name):
    wanted, bounds = bounded_fields(record)[name]
    assert math.isfinite(bounds.low), wanted
    assert math.isfinite(bounds.high), wanted


def absurd_numbers():
    """Huge, tiny, negative, not finite, as YAML has them; some have more digits than Python's."""
    whole = st.integers(-(2**70), 2**70) | st.sampled_from([10**23, 10**400, -(10**23), 0, -1])
    real = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e-300])
    words = st.sampled_from(["1e23", "1e400", ".nan", "9" * 5000, "0x" + "f" * 5000, "-0.0"])
    return whole.map(str) | real.map(str) | words


def paths_of(record, prefix):
    return sorted({path for _, _, path in numeric_paths(record, prefix)})


def parse_within_time(values, change):
    """The config, or None where it is refused; in one line, at once."""
    start = time.monotonic()
    said, config = "", None
    try:
        config = config_file.parse(values, [change])
    except InputError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 1000
    assert time.monotonic() - start < SECONDS
    return config


@given(st.data(), absurd_numbers())
@settings(max_examples=300, deadline=None)
@example(None, "99999999999999999999999")
def test_absurd_number_of_a_vision_run_is_accepted_or_one_line(data, number):
    paths = paths_of(VisionConfig, "") + paths_of(ViTConfig, "model.")
    chosen = paths if data is None else [data.draw(st.sampled_from(paths))]
    for path in chosen:
        parse_within_time(runs.TINY, f"{path}={number}")


@given(st.data(), absurd_numbers())
@settings(max_examples=300, deadline=None)
@example(None, "99999999999999999999999")
def test_absurd_number_of_a_text_run_is_accepted_or_one_line(data, number):
    paths = paths_of(TextConfig, "") + paths_of(ReLUFormerConfig, "model.")
    chosen = paths if data is None else [data.draw(st.sampled_from(paths))]
    where = {"train": "jsonl:a", "validation": "jsonl:a"}
    values = {**text_runs.TINY, "data": {**text_runs.TINY["data"], **where}}
    for path in chosen:
        parse_within_time(values, f"{path}={number}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "batch_size=99999999999999999999999",
            "batch_size=99999999999999999999999 must be a whole",
        ),
        (
            "seed=99999999999999999999999",
            "seed=99999999999999999999999 must be a whole number fro",
        ),
        ("seed=9223372036854775808", "seed=9223372036854775808 must be a whole number from 0 to "),
        ("model.width=99999999999999999999999", "model: width=99999999999999999999999 must be a "),
        ("model.attention.alpha=1e300", "model.attention: alpha=1e+300 must be a number from -16"),
        ("data.augmentation.mixup=.inf", "data.augmentation.mixup=inf must be a number from 0 to"),
    ],
)
def test_sizes_that_cannot_be_are_named_with_their_limits(change, message):
    with pytest.raises(InputError) as error:
        runs.tiny_config(change)
    assert str(error.value).startswith(message)


SIZES = {"depth": 1, "num_heads": 2}
REAL = (np.float16, np.float32, np.float64, np.longdouble)
WHOLE = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)


@pytest.mark.parametrize("kind", [*REAL, *WHOLE])
def test_numbers_of_numpy_are_kept_as_python_numbers(kind):
    betas = OptimizerConfig(betas=(kind(0), kind(0.5))).betas
    assert betas == (0, kind(0.5))
    assert {type(beta) for beta in betas} == {float if kind in REAL else int}
    assert OptimizerConfig(lr=kind(3)).lr == 3
    if kind in WHOLE:
        width = create_model("vit", width=kind(64), **SIZES).config.width
        assert (type(width), width) == (int, 64)
        assert create_model("vit", width=kind(64), **SIZES).config.mlp_dim == 256
    else:
        config = create_model("vit", width=16, norm_eps=kind(1e-3), **SIZES).config
        assert (type(config.norm_eps), config.norm_eps) == (float, float(kind(1e-3)))


NO_NUMBERS = (True, np.bool_(True), np.complex64(0.5), np.timedelta64(1, "s"), np.array(0.5), "1")


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_what_is_no_number_is_none_in_configs_and_in_calls(value):
    shown = re.escape(describe(value))
    with pytest.raises(InputError, match=f"^norm_eps={shown} must be a number above 0, at most 1"):
        create_model("vit", width=16, norm_eps=value, **SIZES)
    with pytest.raises(InputError, match=rf"^eps must be a number\. Got {shown}\.$"):
        HeadNorm("rms", None, value)


@pytest.mark.parametrize("kind", REAL)
def test_scalar_of_numpy_is_shown_by_its_value(kind):
    assert "2.5" in describe(kind(2.5))
    assert describe(np.ones(3)) == "a ndarray of shape [3]"
    with pytest.raises(InputError, match=r"^width=\S*2\.5\S* must be a whole number from 1"):
        create_model("vit", width=kind(2.5), **SIZES)
    with pytest.raises(InputError, match=r"^norm_eps=\S*2\.5\S* must be a number above 0"):
        create_model("vit", width=16, norm_eps=kind(2.5), **SIZES)


@pytest.mark.parametrize("epochs", ["1e30", "1e7", ".nan"])
def test_epochs_have_a_limit(epochs):
    with pytest.raises(InputError, match=r"^epochs=\S+ must be a number above 0, at most"):
        runs.tiny_config("steps=null", f"epochs={epochs}")


def test_epochs_of_too_many_steps_are_refused():
    config = runs.tiny_config("steps=null", "epochs=1e6")
    with pytest.raises(InputError, match=r"^epochs=1000000\.0 are 2,000,000,000 steps, more than"):
        config.total_steps(2000.0)


@given(st.floats(-10, 10), st.floats(-10, 10), st.booleans(), st.booleans(), st.floats())
def test_bounds_contain_what_lies_between_their_ends(low, high, above, below, value):
    inside = (
        low <= value <= high and not (above and value == low) and not (below and value == high)
    )
    assert (value in Bounds(low, high, above=above, below=below)) is inside


@contextmanager
def limited_memory(more):
    """Let the process take so many bytes more than it has, and no byte beyond."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


EXTREMES = [
    (name, path, value)
    for name, (record, prefix) in {
        "vision": (VisionConfig, ""),
        "vit": (ViTConfig, "model."),
    }.items()
    for owner, field, path in numeric_paths(record, prefix)
    for bounds in [bounded_fields(owner)[field][1]]
    for value in {bounds.low, bounds.high}
]
LEFT_OUT = ("data.workers", "data.image_size", "model.image_size")  # digits are 8 x 8, in memory


@pytest.mark.slow
@given(st.sampled_from([(path, value) for _, path, value in EXTREMES if path not in LEFT_OUT]))
@settings(max_examples=4, deadline=None)
@example(("batch_size", 2**24))
@example(("model.width", 65_536))
@example(("model.depth", 256))
@example(("model.mlp_dim", 2**20))
@example(("model.num_classes", 10_000_000))
def test_run_at_its_limits_is_settled_at_once_without_its_memory(change):
    """As by ``--dry-run``: what a step needs is known though it could never be had."""
    path, value = change
    config = parse_within_time(runs.TINY, f"{path}={value}")
    if config is None:
        return
    start = time.monotonic()
    with limited_memory(2 * 10**9):
        said = settle(config)
    assert "\n" not in said
    assert time.monotonic() - start < LONGEST


def settle(config):
    """What the user is told of the memory of a run, or why it cannot be."""
    try:
        check_sharing(config, Ranks())
        task = VisionTask(config, Ranks())
        config.total_steps(task.steps_per_epoch)
        return describe_memory(task, Ranks())
    except InputError as error:
        return str(error)
