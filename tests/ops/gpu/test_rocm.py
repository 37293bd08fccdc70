"""A torch that is built for AMD's GPUs, which calls its devices "cuda" like NVIDIA's.

No such GPU is at hand, so the device is a stand-in. MI300 says that its capability is 9.4, as a
Hopper GPU's is 9.0: nothing may take it for one.
"""

from types import SimpleNamespace

import pytest
import torch

from flashpoint.errors import UnsupportedError
from flashpoint.lab.cli import doctor
from flashpoint.ops import implementations


@pytest.fixture(autouse=True)
def _rocm(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4.43482")
    properties = SimpleNamespace(name="AMD Instinct MI300X", major=9, minor=4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


@pytest.fixture
def q():
    device, dtype = torch.device("cuda", 0), torch.bfloat16
    known = {"is_cpu": False, "is_meta": False, "is_cuda": True}
    return SimpleNamespace(device=device, dtype=dtype, shape=(1, 1, 300, 64), **known)


def test_amd_takes_the_reference(q):
    assert implementations.choose("auto", q, q, "relu") == "reference"


def test_kernels_by_name_are_refused_in_one_line(q):
    with pytest.raises(UnsupportedError, match=r"this torch is built for AMD's.*'reference'") as e:
        implementations.choose("triton", q, q, "relu")
    assert "\n" not in str(e.value)


def test_doctor_says_so():
    status = {status.name: status for status in implementations.survey()}["triton"]
    assert not status.available
    assert "impl='reference' serves AMD's" in status.detail
    assert doctor._describe_kernels(torch.device("cuda", 0)) == (
        "none: AMD's GPUs take impl='reference'"
    )
