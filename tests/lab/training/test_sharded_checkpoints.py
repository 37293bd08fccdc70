"""Checkpoints of weights that processes spread: written meanwhile, read by others."""

import shutil

import pytest
from lab.evaluation.trained import call
from lab.training.mesh_runs import train_each, train_while_writing
from lab.training.runs import assert_close_run, cut_back, tiny_config, train_quietly, write_config

from flashpoint.errors import InputError
from flashpoint.lab.cli.export import export
from flashpoint.lab.training import checkpoint_tensors
from flashpoint.models.vit import ViT

pytestmark = pytest.mark.distributed

CHANGES = ("steps=6", "log_every=1", "evaluate_every=6", "checkpoint_every=3")
TWO = ["parallel={sequence: 2, shard: true}"]
FOUR = ["parallel={data: 2, sequence: 2, shard: true}"]
HELD, UNTIL = 3, 5


@pytest.fixture(scope="module")
def written(tmp_path_factory, mesh_worlds):
    """A run of two whose checkpoint of step 3 waited for step 5; what they did, and had."""
    folder = tmp_path_factory.mktemp("sharded")
    file, out = write_config(folder, *CHANGES), folder / "run"
    found = mesh_worlds[2].run(train_while_writing, file, out, TWO, HELD, UNTIL)
    return out, found


def test_training_goes_on_while_a_checkpoint_is_written(written):
    """What is written are the weights of its own step, not of those that ran meanwhile."""
    out, ((first, weights), (second, _)) = written
    steps = [f"step {n}" for n in range(1, 7)]
    assert second == steps
    assert [what for what in first if what in steps] == steps
    assert first.index(f"step {UNTIL}") < first.index("commit 3") < first.index("commit 6")
    for step, tensors in weights.items():
        saved = checkpoint_tensors.load(out / "checkpoints", step).model
        assert saved.keys() == tensors.keys()
        assert all(saved[name].equal(tensor) for name, tensor in tensors.items()), step
    name = "head.weight"
    assert not weights[HELD][name].equal(weights[6][name])


def test_four_processes_go_on_from_two(written, tmp_path, mesh_worlds):
    alone, out = tmp_path / "alone", shutil.copytree(written[0], tmp_path / "run")
    train_quietly(tiny_config(*CHANGES), alone)
    cut_back(out, HELD)
    begin = (out / "metrics.jsonl").read_text().splitlines()[:HELD]
    mesh_worlds[4].run(train_each, [(write_config(tmp_path, *CHANGES), out, FOUR)])
    assert (out / "metrics.jsonl").read_text().splitlines()[:HELD] == begin
    shards = {path.name[:11] for path in (out / "checkpoints" / "step_6").glob("shard-*")}
    assert shards == {f"shard-0000{rank}" for rank in (1, 2, 3, 4)}
    assert_close_run(alone, out)


def test_a_run_in_shards_is_exported_whole(written, tmp_path):
    """Bit for bit the weights that the processes had together."""
    out, ((_, weights), _) = written
    call(export, out, "--format", "pretrained", "--checkpoint", "last", "--out", tmp_path / "mine")
    exported = ViT.from_pretrained(tmp_path / "mine").state_dict()
    assert exported.keys() == weights[6].keys()
    assert all(exported[name].equal(tensor) for name, tensor in weights[6].items())


def test_a_run_with_a_broken_shard_is_exported_from_another_step_alone(written, tmp_path):
    out = shutil.copytree(written[0], tmp_path / "run")
    shard = next((out / "checkpoints" / "step_6").glob("shard-00002-model-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    said = r"checkpoint step_6 of .* is damaged: shard-00002-model-.* \(there are: 3\)"
    target = ("--format", "pretrained", "--out", tmp_path / "mine", "--checkpoint")
    with pytest.raises(InputError, match=said):
        call(export, out, *target, "last")
    call(export, out, *target, HELD)
    assert (tmp_path / "mine").is_dir()
