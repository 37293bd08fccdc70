"""The batch of a run for which nobody named one."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.data.pictures import make_folder
from lab.training.runs import tiny_config
from lab.training.text_runs import text_config, write_corpus

from flashpoint.lab.training.ranks import Ranks
from flashpoint.lab.training.recipes import CPU_OPERATIONS, choose_batch
from flashpoint.lab.training.sharing import check_sharing
from flashpoint.lab.training.text import TextTask
from flashpoint.lab.training.vision import VisionTask

SIZES = st.integers(1, 10**7)
PARTS = st.sampled_from([1, 2, 3, 4, 8])


@given(SIZES, st.floats(1.0, 1e14), SIZES, PARTS, PARTS, st.sampled_from(["cpu", "cuda"]))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batch_suits_data_device_and_processes(
    monkeypatch, samples, operations, most, processes, parts, device
):
    monkeypatch.setattr(VisionTask, "measure", staticmethod(lambda _: (samples, operations)))
    config = tiny_config(f"batch_size={most}", f"accumulate={parts}")
    chosen, said = choose_batch(config, device, processes)
    size, shares = chosen.batch_size, processes * parts
    check_sharing(chosen, Ranks(size=processes))
    assert f"taking {size:,}, for {samples:,} training images and {device}" in said
    if size > shares:  # else there is no smaller one
        assert size <= min(samples, most)
        assert device == "cuda" or size * operations <= CPU_OPERATIONS


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("parts", [1, 2])
def test_batch_of_text_can_be_shared(tmp_path, processes, parts):
    config = text_config(write_corpus(tmp_path), "batch_size=16384", f"accumulate={parts}")
    samples, operations = TextTask.measure(config)
    assert 100 < samples < 2000
    assert operations > 0
    chosen, _ = choose_batch(config, "cpu", processes)
    assert chosen.batch_size <= max(samples, 64 * processes * parts)
    TextTask(chosen, Ranks(size=processes))


def test_images_are_counted(tmp_path):
    for split, each in (("train", 15), ("val", 4)):
        make_folder(tmp_path / split, {"a": each, "b": each, "c": each})
    config = tiny_config(f"data.train={tmp_path}", f"data.validation={tmp_path}")
    assert VisionTask.measure(config)[0] == 45
    assert choose_batch(config, "cpu", 1)[0].batch_size == 16  # the config's own
