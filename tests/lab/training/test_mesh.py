"""Four gloo processes that share samples, tokens, heads and weights are one process."""

import re
import shutil

import pytest
import torch
from lab.training.runs import (
    curve,
    final,
    finish,
    tiny_config,
    torchrun,
    train_quietly,
)
from lab.training.test_distributed import SEVERAL_RUNS
from lab.training.text_runs import text_config, write_corpus

from flashpoint.errors import UnsupportedError
from flashpoint.lab.runs import checkpoints
from flashpoint.lab.training import config_file
from flashpoint.lab.training.head_split import check_heads
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.sharing import check_sharing, check_split
from flashpoint.lab.training.text import TextTask
from flashpoint.models.registry import create_model

SHORT = ("steps=6", "log_every=2", "evaluate_every=6", "checkpoint_every=2", "keep_checkpoints=9")
# Five tokens, so that shards differ in length; a gate, and learned numbers per head.
IMAGES = (*SHORT, "model.pool=token", "model.gate=silu", "batch_size=64")
TEXT = (*SHORT, "data.join=false", "data.length=128", "model.num_heads=4")
MESHES = {
    "images": {
        "tokens": ("data=2", "sequence=2"),
        "tokens-sharded": ("data=2", "sequence=2", "shard=true"),
        "heads": ("sequence=2", "tensor=2"),
        "heads-sharded": ("data=2", "tensor=2", "shard=true"),
    },
    "text": {"tokens": ("data=2", "sequence=2")},
    "penalty": {"heads": ("tensor=4",)},
}
FEWER = {"tokens": ("sequence=2",), "tokens-sharded": ("shard=true",), "heads": ("tensor=2",)}
"""What two processes make of runs that four began."""


@pytest.mark.distributed
def test_a_mesh_of_four_equals_one_process_and_two_and_one_go_on_from_it(tmp_path):
    """Within the rounding of sums in another order."""
    corpus = write_corpus(tmp_path)
    configs = {
        "images": tiny_config(*IMAGES),
        "text": text_config(corpus, *TEXT, "penalty=0"),
        # Rows of almost no mass have slopes of 1000, so rounding shows after a few steps.
        "penalty": text_config(corpus, *TEXT, "penalty=0.1", "steps=2"),
    }
    for task, config in configs.items():
        (tmp_path / f"{task}.yaml").write_text(config_file.dump(config))
        train_quietly(config, tmp_path / task)
    meshes = [(task, name, mesh) for task in MESHES for name, mesh in MESHES[task].items()]
    train_on(4, tmp_path, meshes)
    for task, name, _ in meshes:
        assert_same(tmp_path / task, tmp_path / f"{task}-{name}")
    for name in FEWER:
        cut_back(tmp_path / f"images-{name}", 2)
    train_on(2, tmp_path, [("images", name, mesh) for name, mesh in FEWER.items()])
    for name in FEWER:
        out = tmp_path / f"images-{name}"
        assert_same(tmp_path / "images", out)
        cut_back(out, 4)
        _, said = train_quietly(configs["images"], out)
        assert "going on from step 4 of 6" in said
        assert_same(tmp_path / "images", out)


def train_on(num_processes, folder, meshes):
    """Train several runs in one go, each with a mesh of its own."""
    plans = []
    for task, name, mesh in meshes:
        changes = ",".join(f"parallel.{change}" for change in mesh)
        plans.append(f"{folder / task}.yaml,{folder / task}-{name},{changes}")
    done = finish(torchrun(num_processes, folder / "train.py", *plans, code=SEVERAL_RUNS))
    assert done.returncode == 0, done.stderr


def cut_back(out, step):
    """As if the run had been killed after a step."""
    (out / "record.json").unlink()
    for later in checkpoints.saved_steps(out / "checkpoints"):
        if later > step:
            shutil.rmtree(out / "checkpoints" / f"step_{later}")


def assert_same(one, other):
    for mine, theirs in zip(curve(one), curve(other), strict=True):
        assert mine.pop("kind") == theirs.pop("kind")
        assert mine == pytest.approx(theirs, rel=1e-4), other
    mine, theirs = final(one), final(other)
    for part in ("model", "optimizer"):
        tensors, others = getattr(mine, part), getattr(theirs, part)
        assert tensors.keys() == others.keys()
        for name, tensor in tensors.items():
            torch.testing.assert_close(others[name], tensor, rtol=1e-3, atol=1e-5)


SMALL = {"width": 16, "num_heads": 2, "depth": 1, "patch_size": 4, "mlp_dim": 32, "image_size": 8}


@pytest.mark.parametrize(
    ("ranks", "settings", "said"),
    [
        ({"sequence": 2}, {"attention": "softmax"}, "parallel.sequence=2 is for pointwise atten"),
        ({"tensor": 4}, {}, "parallel.tensor=4 must divide the 2 heads of blocks.0.attn."),
        ({"tensor": 2}, {"mlp_dim": 33}, "parallel.tensor=2 must divide the 33 hidden units of"),
        ({"tensor": 2}, {"output_norm": "rms"}, "the output_norm of blocks.0.attn is over all he"),
    ],
)
def test_models_that_cannot_be_cut_are_refused_in_one_line(ranks, settings, said):
    with torch.device("meta"):
        model = create_model("vit", **{**SMALL, **settings})
    with pytest.raises((UnsupportedError, ValueError), match=re.escape(said)) as caught:
        check_split(model, Ranks(size=4, **ranks))
    assert "\n" not in str(caught.value)


def test_softmax_over_slots_cannot_be_cut():
    settings = {"vocabulary_size": 50, "memory_activation": "softmax", "memory_norm": True}
    with torch.device("meta"):
        model = create_model("reluformer_tiny", **settings)
    with pytest.raises(UnsupportedError, match=r"the softmax of encoder\.0\.memory is over all"):
        check_heads(model, Ranks(size=2, tensor=2))


def test_a_penalty_over_tokens_of_several_processes_is_refused(tmp_path):
    config = text_config(write_corpus(tmp_path))
    with pytest.raises(UnsupportedError, match=r"penalty=0\.1 is a mean .* Set penalty: 0"):
        TextTask(config, Ranks(size=2, sequence=2))


def test_compilers_and_other_tasks_are_refused_where_models_are_cut():
    config = tiny_config("parallel.sequence=2", "compile=default")
    with pytest.raises(UnsupportedError, match=r"parallel\.sequence=2 .* --set compile=none"):
        check_sharing(config, Ranks(size=2, sequence=2))
