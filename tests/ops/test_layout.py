"""[B, L, H, D] passed for [B, H, L, D] is noticed where it can be, and said once."""

import warnings

import pytest
import torch

from flashpoint import attention, scaled_dot_product_attention
from flashpoint.ops import check


@pytest.fixture
def told(monkeypatch):
    """Calls a function as the first of a process; gives the warnings about its layout."""

    def collect(call, *args, **options):
        monkeypatch.setattr(check, "_told_of_layout", False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                call(*args, **options)
        return [str(w.message) for w in caught if "[B, L, H, D]" in str(w.message)]

    return collect


@pytest.mark.parametrize("call", [attention, scaled_dot_product_attention])
def test_heads_and_tokens_the_wrong_way_round_are_noticed_once(call, told):
    x = torch.randn(2, 100, 8, 16)  # [B, L, H, D]
    (message,) = told(call, x, x, x)
    assert "[2, 100, 8, 16]" in message
    assert "100 heads of 8 tokens" in message
    assert ".transpose(1, 2)" in message
    assert "\n" not in message
    qkv = torch.randn(2, 100, 3, 8, 16)
    assert told(call, *qkv.unbind(2))
    if call is attention:
        assert told(call, x, x[:, :, :4], x[:, :, :4])  # queries' heads share keys


UNNOTICED = {
    "as it should be": (torch.randn(2, 8, 100, 16),) * 3,
    "few tokens, transposed": (torch.randn(2, 4, 8, 16).transpose(1, 2),) * 3,
    "one token": (torch.randn(2, 8, 1, 16),) * 3,
    "as many tokens as heads": (torch.randn(2, 8, 8, 16),) * 3,
    "decoding": (torch.randn(2, 8, 1, 16), *[torch.randn(2, 8, 100, 16)] * 2),
    "decoding of few": (torch.randn(2, 8, 4, 16), *[torch.randn(2, 8, 5, 16)] * 2),
    "shared keys": (torch.randn(2, 8, 4, 16), *[torch.randn(2, 2, 4, 16)] * 2),
}


@pytest.mark.parametrize("tensors", UNNOTICED.values(), ids=UNNOTICED)
def test_usual_layouts_are_no_cause_for_warnings(tensors, told):
    assert told(attention, *tensors) == []


def test_batch_of_three_dims_is_no_cause_for_warnings(told):
    assert told(scaled_dot_product_attention, *[torch.randn(32, 8, 16)] * 3) == []


def test_compiled_call_says_nothing_of_layout(told):
    torch._dynamo.reset()
    x = torch.randn(2, 100, 8, 16)
    assert told(torch.compile(attention, fullgraph=True, backend="aot_eager"), x, x, x) == []


def test_code_that_knows_its_layout_is_not_told(told):
    x = torch.randn(2, 100, 8, 16)

    def call():
        with check.known_layout():
            attention(x, x, x)

    assert not told(call)
    assert told(attention, x, x, x)
