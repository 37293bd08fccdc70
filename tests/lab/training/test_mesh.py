"""Gloo processes that share samples, tokens, heads and weights are one process."""

import re
import shutil

import pytest
import torch
from lab.training.mesh_runs import train_each
from lab.training.runs import assert_close_run, cut_back, final, tiny_config, train_quietly
from lab.training.text_runs import text_config, write_corpus

from flashpoint.distributed.strategy import STRATEGIES
from flashpoint.errors import UnsupportedError
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
FOUR = {
    "images": {
        "tokens": ("data=2", "sequence=2"),
        "tokens-sharded": ("data=2", "sequence=2", "shard=true"),
        "heads": ("sequence=2", "tensor=2"),
        "heads-sharded": ("data=2", "tensor=2", "shard=true"),
    },
    "text": {
        "tokens": ("data=2", "sequence=2"),
        "tokens-sharded": ("data=2", "sequence=2", "shard=true"),
    },
    "penalty": {"heads": ("tensor=4",), "tokens": ("sequence=2", "tensor=2")},
}
TWO = {
    "tokens": ("sequence=2", "strategy=gather"),
    "tokens-sharded": ("shard=true",),
    "heads": ("tensor=2",),
}
"""What two processes make of runs that four began."""
ALL = ("data=2", "sequence=2", "tensor=2")
EIGHT = {task: {"all": ALL, "all-sharded": (*ALL, "shard=true")} for task in ("images", "text")}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Runs of one process, by task, beside their configs."""
    folder = tmp_path_factory.mktemp("mesh")
    corpus = write_corpus(folder)
    configs = {
        "images": tiny_config(*IMAGES),
        "text": text_config(corpus, *TEXT, "penalty=0"),
        # Rows of almost no mass have slopes of 1000, so rounding shows after a few steps.
        "penalty": text_config(corpus, *TEXT, "penalty=0.1", "steps=2"),
    }
    for task, config in configs.items():
        (folder / f"{task}.yaml").write_text(config_file.dump(config))
        train_quietly(config, folder / task)
    return folder


@pytest.mark.distributed
def test_a_mesh_of_four_equals_one_process_and_two_and_one_go_on_from_it(
    alone, tmp_path, mesh_worlds
):
    """Within the rounding of sums in another order."""
    meshes = [(task, name, mesh) for task in FOUR for name, mesh in FOUR[task].items()]
    mesh_worlds[4].run(train_each, plans_of(alone, tmp_path, meshes))
    for task, name, _ in meshes:
        assert_close_run(alone / task, tmp_path / f"{task}-{name}")
    check_shards(tmp_path / "images-tokens-sharded", tmp_path / "copy")
    for name in TWO:
        cut_back(tmp_path / f"images-{name}", 1)
    fewer = [("images", *mesh) for mesh in TWO.items()]
    mesh_worlds[2].run(train_each, plans_of(alone, tmp_path, fewer))
    for name in TWO:
        out = tmp_path / f"images-{name}"
        assert_close_run(alone / "images", out)
        cut_back(out, 2)
        _, said = train_quietly(tiny_config(*IMAGES), out)
        assert "going on from step 2 of 3" in said
        assert_close_run(alone / "images", out)


@pytest.mark.distributed
def test_a_mesh_of_eight_equals_one_process(alone, tmp_path, mesh_worlds):
    """Two each share samples, tokens and heads; the weights are whole, or spread."""
    meshes = [(task, name, mesh) for task in EIGHT for name, mesh in EIGHT[task].items()]
    mesh_worlds[8].run(train_each, plans_of(alone, tmp_path, meshes))
    for task, name, _ in meshes:
        assert_close_run(alone / task, tmp_path / f"{task}-{name}")


@pytest.mark.distributed
def test_a_strategy_by_name_is_the_one_that_runs(alone, tmp_path, mesh_worlds):
    meshes = [("images", name, ("sequence=2", f"strategy={name}")) for name in STRATEGIES]
    found = mesh_worlds[2].run(train_each, plans_of(alone, tmp_path, meshes))
    assert found == [[{name} for name in STRATEGIES]] * 2
    for name in STRATEGIES:
        assert_close_run(alone / "images", tmp_path / f"images-{name}")


@pytest.mark.distributed
def test_a_strategy_that_cannot_serve_is_refused_before_a_folder_is_made(
    alone, tmp_path, mesh_worlds
):
    mesh = ("sequence=4", "strategy=ulysses")
    plans = plans_of(alone, tmp_path, [("images", "refused", mesh)])
    begin = "UnsupportedError: parallel.strategy='ulysses': sequence 4 x tensor 1 = 4 processes"
    for ok, said in mesh_worlds[4].try_run(train_each, plans):
        assert not ok
        assert said.startswith(begin)
    assert not list(tmp_path.iterdir())


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


def plans_of(configs, folder, meshes):
    """For each run its config, its folder and its mesh."""
    return [
        (f"{configs / task}.yaml", f"{folder / task}-{name}", [f"parallel.{x}" for x in mesh])
        for task, name, mesh in meshes
    ]


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


def test_heads_that_do_not_divide_by_the_processes_are_refused_for_ulysses():
    with torch.device("meta"):
        model = create_model("vit", **SMALL)
    said = r"sequence 2 x tensor 2 = 4 processes must divide the 2 heads and 2 key heads of block"
    with pytest.raises(UnsupportedError, match=said) as caught:
        check_split(model, Ranks(size=4, sequence=2, tensor=2), "ulysses")
    assert str(caught.value).endswith("Set parallel.strategy: ring, or auto.")
    check_split(model, Ranks(size=2, sequence=2), "ulysses")


def test_compilers_and_other_tasks_are_refused_where_models_are_cut():
    config = tiny_config("parallel.sequence=2", "compile=default")
    with pytest.raises(UnsupportedError, match=r"parallel\.sequence=2 .* --set compile=none"):
        check_sharing(config, Ranks(size=2, sequence=2))
