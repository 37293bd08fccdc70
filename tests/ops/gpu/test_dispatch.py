"""Who serves a call on which GPU, told without one: the table, versions of Triton, loads."""

import os
import subprocess
import sys

import pytest
import torch
from implementations import HAS_TRITON

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

import triton

from flashpoint.errors import UnsupportedError
from flashpoint.ops.gpu import call as call_module
from flashpoint.ops.gpu import dispatch, sign_budget
from flashpoint.ops.gpu.call import Call
from flashpoint.ops.gpu.device import Gpu
from flashpoint.ops.spec import Terms


def make_gpu(family):
    return Gpu("some GPU", family, 227 * 1024, 132)


@pytest.fixture
def serves(monkeypatch):
    """Whether the Hopper kernels serve a GPU of a family with a version of Triton."""

    def serves(family, version="3.6.0", device="cuda:0", interpreted=False):
        monkeypatch.setattr(dispatch, "gpu_of", lambda _: make_gpu(family))
        monkeypatch.setattr(dispatch, "INTERPRETED", interpreted)
        monkeypatch.setattr(triton, "__version__", version)
        return dispatch.serves.__wrapped__(torch.device(device))

    return serves


def test_hopper_kernels_serve_hopper_alone(serves):
    assert [family for family in (7, 8, 9, 10, 11, 12) if serves(family)] == [9]
    assert not serves(9, device="cpu")
    assert not serves(9, interpreted=True)


def test_hopper_kernels_want_a_gluon_that_is_supported(serves):
    versions = ("3.4.0", "3.5.1", "3.6.0", "3.7.1", "3.8.0", "3.9.0", "3.10.0", "4.0.0")
    assert [v for v in versions if serves(9, v)] == ["3.6.0", "3.7.1", "3.8.0", "3.9.0"]


@pytest.mark.parametrize("family", [8, 9, 10, 12])
@pytest.mark.parametrize(
    ("D", "Lk", "by_engine"),
    [(64, 257, True), (64, 256, False), (72, 64, True), (65, 1000, False), (60, 1000, False)],
)
def test_copy_engine_loads_long_calls_and_rows_that_pointers_load_singly(
    family, D, Lk, by_engine, monkeypatch
):
    monkeypatch.setattr(call_module, "gpu_of", lambda _: make_gpu(family))
    monkeypatch.setattr(call_module, "INTERPRETED", False)
    q, k = (torch.empty(1, 2, length, D, dtype=torch.bfloat16) for length in (64, Lk))
    call = Call.dense(q, k, k, None, None, None, Terms())
    tiles = {"BLOCK_M": 64, "BLOCK_N": 64}
    assert call.inputs(tiles)["TMA"] == (by_engine and family >= 9)
    odd = torch.empty(1, 2, 64, D + 1, dtype=torch.bfloat16)[..., :D]
    assert not call.inputs(tiles, odd)["TMA"]


BF16, FP32 = torch.bfloat16, torch.float32


def make_call(Lq=300, Lk=None, D=64, Dv=None, heads=(2, 2), dtype=BF16, **options):
    """A dense call, or where ``cu`` is given one of sequences that follow one another."""
    Lk, Dv = Lk or Lq, Dv or D
    extras = [options.pop(name, None) for name in ("bias", "mask", "lengths")]
    cu, terms = options.pop("cu", None), Terms(**options)
    sizes = ((heads[0], Lq, D), (heads[1], Lk, D), (heads[1], Lk, Dv))
    q, k, v = (torch.empty(2, *size, dtype=dtype) for size in sizes)
    if cu is None:
        return Call.dense(q, k, v, *extras, terms)
    q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
    return Call.varlen(q, k, v, *extras[:2], cu, cu, Lq, Lk, terms)


# options of a call; by rows of the table, why they do not serve it on a Hopper, down to who does
SERVED = {
    "short": ({"Lq": 49}, {"whole heads": None}),
    "short-bias": ({"Lq": 49, "bias": torch.ones(1, 1, 49, 49)}, {"whole heads": None}),
    "short-causal": (
        {"Lq": 49, "right": 0},
        {
            "whole heads": "it is causal or has a window",
            "decode": "Lk=49 is under 512 keys",
            "Hopper": "Lq=49 is under 192 tokens",
            "portable": None,
        },
    ),
    "one-query": (
        {"Lq": 1, "Lk": 4096},
        {"whole heads": "q, k and v have different shapes", "decode": None},
    ),
    "grouped-queries": (
        {"Lq": 9, "Lk": 600, "heads": (16, 2)},
        {
            "whole heads": "q, k and v have different shapes",
            "decode": "Lq=9 for each of 8 heads that share keys is over 64 tokens",
            "Hopper": "Lq=9 is under 192 tokens",
            "portable": None,
        },
    ),
    "usual": (
        {},
        {
            "whole heads": "Lq=300 is over 64 tokens",
            "decode": "Lq=300 is over 64 tokens",
            "Hopper": None,
        },
    ),
    "images": ({"Lq": 65}, {"Hopper": None}),
    "images-causal": ({"Lq": 65, "right": 0}, {"Hopper": "Lq=65 is under 192 tokens"}),
    "fp32": ({"dtype": FP32}, {"Hopper": "float32 is not bfloat16 or float16"}),
    "window": ({"left": 9, "right": 0}, {"Hopper": "it has a window"}),
    "mask": ({"mask": torch.ones(1, 1, 1, 300)}, {"Hopper": "it has a mask"}),
    "bias": ({"bias": torch.ones(1, 1, 1, 300)}, {"Hopper": "it has a bias tensor"}),
    "lengths": ({"lengths": torch.tensor([9, 300])}, {"Hopper": "it has key_lengths"}),
    "varlen": (
        {"cu": torch.tensor([0, 300])},
        {"Hopper": "its sequences follow one another (varlen)"},
    ),
    "wide-values": (
        {"Dv": 128},
        {"Hopper": "D=64, Dv=128 do not fill blocks of 64, 128, 192 or 256"},
    ),
    "192": ({"D": 192, "Dv": 136}, {"Hopper": None}),
    "256": ({"D": 200, "Dv": 256, "right": 0}, {"Hopper": None}),
    "wide-silu": ({"D": 256, "activation": "silu"}, {"Hopper": "it is not relu, in D over 128"}),
    "odd-rows": ({"D": 63}, {"Hopper": "rows of q, k or v do not lie on whole 16 bytes"}),
}


@pytest.mark.parametrize(("options", "reasons"), SERVED.values(), ids=SERVED)
def test_first_row_without_a_reason_serves(options, reasons, monkeypatch):
    monkeypatch.setattr(dispatch, "serves", lambda _: True)
    call = make_call(**options)
    found = dispatch.explain(call)
    assert reasons.items() <= found.items()
    served = next((name for name, reason in reasons.items() if reason is None), "portable")
    assert dispatch.choose(call).name == served
    assert list(found) == [row.name for row in dispatch.TABLE][: len(found)]
    assert [name for name, reason in found.items() if reason is None] == [list(found)[-1]]


def test_rows_go_from_the_narrowest_to_the_one_that_serves_all():
    names = ["whole heads", "decode", "Hopper", "portable"]
    assert [row.name for row in dispatch.TABLE] == names


def test_backward_has_reasons_of_its_own(monkeypatch):
    monkeypatch.setattr(dispatch, "serves", lambda _: True)
    call = make_call(Lq=300, Lk=60)
    do = torch.empty(2, 2, 300, 64, dtype=BF16)
    assert dispatch.choose(call).name == "Hopper"
    assert dispatch.explain(call, do) == {
        "whole heads": "q, k and v have different shapes",
        "decode": "it has no backward of its own",
        "Hopper": "Lk=60 is under 192 tokens",
        "portable": None,
    }
    odd = torch.empty(2, 2, 300, 65, dtype=BF16)[..., :64]
    found = dispatch.explain(make_call(), odd)
    assert found["Hopper"] == "rows of do do not lie on whole 16 bytes"


def test_wide_backward_stores_signs_or_is_for_others(monkeypatch):
    monkeypatch.setattr(dispatch, "serves", lambda _: True)
    call = make_call(D=256)
    do = torch.empty(2, 2, 300, 256, dtype=BF16)
    assert dispatch.choose(call, do).name == "Hopper"
    monkeypatch.setattr(sign_budget, "MOST_WORDS", sign_budget.count_words(300, 300) - 1)
    assert dispatch.choose(call).name == "Hopper"
    assert dispatch.explain(call, do)["Hopper"] == "it is too long for signs of scores"
    summed = make_call(D=256)._replace(has_sums=True)
    assert dispatch.explain(summed)["Hopper"] == "it has sums, in D over 128"


@pytest.mark.parametrize(
    ("family", "version", "reason"),
    [
        (8, "3.6.0", "some GPU is no Hopper GPU"),
        (9, "3.5.1", "Triton 3.5.1 has another Gluon"),
    ],
)
def test_machine_is_a_reason_too(serves, family, version, reason):
    assert not serves(family, version)
    assert dispatch._why_no_hopper(torch.device("cuda:0")) == reason


def test_call_that_no_kernel_takes_hears_every_reason():
    with pytest.raises(UnsupportedError) as caught:
        dispatch.choose(make_call(D=300))
    message = str(caught.value)
    assert "whole heads: Lq=300 is over 64 tokens; decode: " in message
    assert "portable: serves head dims up to 256, not D=300, Dv=300" in message


def test_hopper_modules_are_imported_only_where_they_serve():
    """Another Triton's Gluon may lack what they name."""
    code = (
        "import sys, torch\n"
        "from flashpoint import attention\n"
        "q = torch.ones(1, 1, 200, 64, dtype=torch.float16)\n"
        "attention(q, q, q, impl='triton')\n"
        "assert 'flashpoint.ops.gpu.portable.forward' in sys.modules\n"
        "assert not [name for name in sys.modules if name.startswith('flashpoint.ops.gpu.hopper')]"
    )
    subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TRITON_INTERPRET": "1"}, check=True
    )


SIGNED = {  # heads, group, queries, keys: whether signs pay on 132 processors
    "4k": ((64, 1, 4096, 4096), True),
    "16k": ((8, 1, 16384, 16384), True),
    "one-sample": ((8, 1, 2048, 2048), True),
    "grouped": ((2, 4, 4096, 4096), True),
    "32k": ((8, 1, 32768, 32768), True),
    "16k-grouped": ((2, 8, 16384, 16384), True),
    "chunk-of-keys": ((8, 1, 65536, 8192), True),
    "longer-chunk-of-keys": ((8, 1, 262144, 8192), False),  # 64 tiles of keys a launch
    "longer-chunk-of-queries": ((8, 1, 8192, 262144), False),
}


@pytest.mark.parametrize(("sizes", "pays"), SIGNED.values(), ids=SIGNED)
def test_signs_are_stored_where_launches_fill_the_gpu(sizes, pays):
    work = sign_budget.Work(*sizes, 132)
    most = sign_budget.count_heads(*sizes[1:])
    assert work.gains_by(work.split(most)) is pays
