"""Classes of a model and of data, matched by WordNet id or name."""

import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.evaluation.class_matching import match_classes, require_same_classes, some

LARGE = ["n00000005", "n00000003", "n00000009", "n00000001", "n00000007"]
SMALL = ["n00000001", "n00000003", "n00000005"]


@pytest.fixture
def fake_timm(monkeypatch):
    """timm's lists with made-up ids: 1000 of them stand in reverse in the list of 21,843."""
    ids = [f"n{i:08d}" for i in range(21_843)]
    lists = {"imagenet-1k": ids[999::-1], "imagenet-21k-goog": ids}
    names = {1000: "imagenet-1k", 21_843: "imagenet-21k-goog"}
    module = SimpleNamespace(
        ImageNetInfo=lambda subset: SimpleNamespace(label_names=lambda: lists[subset]),
        infer_imagenet_subset=lambda config: names.get(config["num_classes"]),
    )
    monkeypatch.setitem(sys.modules, "timm.data.imagenet_info", module)


def test_outputs_are_found_by_wordnet_id():
    match = match_classes(LARGE, SMALL)
    assert match.columns.tolist() == [3, 1, 0]
    assert match.new_labels.tolist() == [0, 1, 2]
    assert match.unmatched == ()


def test_ids_are_found_inside_names():
    match = match_classes(["n00000001 tench", "n00000002_goldfish"], ["b/n00000002", "n00000001"])
    assert match.columns.tolist() == [1, 0]


def test_restriction_lets_only_shared_classes_answer():
    """The model's favorite is a class that the data do not have."""
    logits = torch.tensor([[0.0, 1.0, 9.0, 2.0, 9.0], [3.0, 0.0, 9.0, 1.0, 9.0]])
    restricted, labels = match_classes(LARGE, SMALL).restrict(logits, torch.tensor([0, 1]))
    assert restricted.tolist() == [[2.0, 1.0, 0.0], [1.0, 0.0, 3.0]]
    assert labels.tolist() == [0, 1]
    assert (restricted.argmax(1) == labels).tolist() == [True, False]


def test_unmatched_ids_are_named_and_their_images_left_out():
    match = match_classes(["a", "b", "c"], ["b", "x", "c", "y"])
    assert match.unmatched == ("x", "y")
    logits = torch.arange(12.0).view(4, 3)
    restricted, labels = match.restrict(logits, torch.tensor([1, 2, 0, 3]))
    assert restricted.tolist() == [[4.0, 5.0], [7.0, 8.0]]
    assert labels.tolist() == [1, 0]


def test_many_names_are_counted():
    assert some(["x", "y"]) == "x, y"
    assert some([f"x{i}" for i in range(9)]) == "x0, x1, x2, x3, x4 and 4 more"


def test_nothing_in_common_is_refused():
    with pytest.raises(InputError, match=r"2 classes \(a, b\).*3 \(c, d, e\) have no name"):
        match_classes(["a", "b"], ["c", "d", "e"])


def test_numbered_imagenet_classes_get_timms_ids(fake_timm):
    """A model trained on numbered labels of ImageNet-21k, on numbered ImageNet-1k."""
    match = match_classes([str(i) for i in range(21_843)], [str(i) for i in range(1000)])
    assert match.columns.tolist() == list(range(999, -1, -1))
    assert not match.unmatched


def test_numbered_model_on_folders_named_by_id(fake_timm):
    match = match_classes([str(i) for i in range(21_843)], ["n00000042", "n00021842", "n00099999"])
    assert match.columns.tolist() == [42, 21_842]
    assert match.unmatched == ("n00099999",)


def test_few_numbered_classes_match_by_number():
    assert match_classes(["0", "1", "2"], ["0", "1"]).columns.tolist() == [0, 1]


def test_timm_that_cannot_be_imported_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm.data.imagenet_info", None)
    with pytest.raises(UnsupportedError, match=r"21843 numbered classes.*\.\[timm\]"):
        match_classes([str(i) for i in range(21_843)], SMALL)


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "c"], ["0", "1"]])
def test_data_with_the_models_classes_pass(names):
    require_same_classes(["a", "b", "c"], names)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "x"], "class 1 is 'b' for the model and 'x' in the data. Pass --labels matching"),
        (["a", "b", "c", "d"], "the data have 4 classes, the model 3. Pass --labels matching"),
    ],
)
def test_data_with_other_classes_are_refused(names, message):
    with pytest.raises(InputError, match=message):
        require_same_classes(["a", "b", "c"], names)


REAL = """
import torch
try:
    import torchvision
except RuntimeError:  # its operators are missing beside a CPU torch; none is needed here
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")
from flashpoint.lab.evaluation.class_matching import match_classes
match = match_classes([str(i) for i in range(21_843)], [str(i) for i in range(1000)])
print(len(match.columns), match.columns[0].item(), *match.unmatched)
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")
def test_imagenet_1k_is_found_in_the_real_imagenet_21k():
    """All but the teddy bear, of which ImageNet-21k has no class; the tench is its 360th."""
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["999", "359", "n04399382"]
