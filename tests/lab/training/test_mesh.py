"""Four gloo processes that share samples, tokens, heads and weights are one process."""

import re
import shutil

import pytest
import torch
from distributed.workers import Worlds
from lab.training.mesh_runs import train_each
from lab.training.runs import curve, final, tiny_config, train_quietly
from lab.training.text_runs import text_config, write_corpus

from flashpoint.errors import UnsupportedError
from flashpoint.lab.runs import checkpoints
from flashpoint.lab.runs.checkpoints import DamagedError
from flashpoint.lab.training import checkpoint_tensors, config_file
from flashpoint.lab.training.given_weights import read_weights
from flashpoint.lab.training.head_split import check_heads
from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.run_folder import open_run
from flashpoint.lab.training.sharing import check_sharing, check_split
from flashpoint.models.registry import create_model

SHORT = ("steps=3", "log_every=1", "evaluate_every=3", "checkpoint_every=1", "keep_checkpoints=9")
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
    "penalty": {"heads": ("tensor=4",), "tokens": ("sequence=2", "tensor=2")},
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
    worlds = Worlds(4, 2, module="lab.training.mesh_runs")
    try:
        four, two = worlds.worlds
        four.run(train_each, plans_of(tmp_path, meshes))
        for task, name, _ in meshes:
            assert_same(tmp_path / task, tmp_path / f"{task}-{name}")
        check_shards(tmp_path / "images-tokens-sharded", tmp_path / "copy")
        for name in FEWER:
            cut_back(tmp_path / f"images-{name}", 1)
        two.run(train_each, plans_of(tmp_path, [("images", *mesh) for mesh in FEWER.items()]))
    finally:
        worlds.stop()
    for name in FEWER:
        out = tmp_path / f"images-{name}"
        assert_same(tmp_path / "images", out)
        cut_back(out, 2)
        _, said = train_quietly(configs["images"], out)
        assert "going on from step 2 of 3" in said
        assert_same(tmp_path / "images", out)


def check_shards(out, copy):
    """Every process wrote its share, one alone reads the model, and no damage goes unnoticed."""
    files = sorted((out / "checkpoints" / "step_3").glob("shard-*.safetensors"))
    assert {name.name[:11] for name in files} == {f"shard-0000{rank}" for rank in (1, 2, 3, 4)}
    model = open_run(out).load_model("last")
    assert all(x.equal(final(out).model[name]) for name, x in model.state_dict().items())
    assert read_weights(str(out)).source["file"].endswith("state.json")
    shutil.copytree(out / "checkpoints", copy)
    with (copy / "step_3" / files[2].name).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"?")
    for leave_shards in (False, True):
        with pytest.raises(DamagedError, match=r"does not match its checksum"):
            checkpoint_tensors.load(copy, 3, leave_shards=leave_shards)


def plans_of(folder, meshes):
    """For each run its config, its folder and its mesh."""
    return [
        (f"{folder / task}.yaml", f"{folder / task}-{name}", [f"parallel.{x}" for x in mesh])
        for task, name, mesh in meshes
    ]


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


def test_compilers_and_other_tasks_are_refused_where_models_are_cut():
    config = tiny_config("parallel.sequence=2", "compile=default")
    with pytest.raises(UnsupportedError, match=r"parallel\.sequence=2 .* --set compile=none"):
        check_sharing(config, Ranks(size=2, sequence=2))
