"""A rival that fails leaves a short reason; our own bugs stay bugs."""

import warnings

import pytest
import torch

from flashpoint.errors import UnsupportedError
from flashpoint.lab.bench.failure import MAX_REASON, Refused, attempt, explain


def fail(error, *warned):
    def call():
        for message in warned:
            warnings.warn(message, stacklevel=1)
        raise error

    return call


def test_result_passes_and_warnings_do_not():
    assert attempt(lambda: warnings.warn("noise", stacklevel=1) or 5, is_ours=True) == 5


def test_reason_of_a_rival_is_the_first_line():
    with pytest.raises(Refused, match=r"^no such kernel$"):
        attempt(fail(RuntimeError("no such kernel.\n  more\n  lines")), is_ours=False)


def test_reason_of_a_backend_is_its_warning():
    refusal = RuntimeError("No available kernel. Aborting execution.")
    told = ("cuDNN attention kernel not used because:", "cuDNN attention needs D <= 128.")
    with pytest.raises(Refused, match=r"^cuDNN attention needs D <= 128$"):
        attempt(fail(refusal, *told, "Flash attention has been runtime disabled."), is_ours=False)


def test_long_reasons_are_cut():
    assert len(explain(ValueError("x" * 1000), [])) == MAX_REASON


def test_too_little_memory_is_a_reason_for_all():
    for is_ours in (False, True):
        with pytest.raises(Refused, match=r"^out of memory$"):
            attempt(fail(torch.OutOfMemoryError("CUDA out of memory")), is_ours=is_ours)


def test_what_we_do_not_serve_is_a_reason_and_a_bug_is_not():
    with pytest.raises(Refused, match="not served"):
        attempt(fail(UnsupportedError("not served here.")), is_ours=True)
    with pytest.raises(ZeroDivisionError):
        attempt(fail(ZeroDivisionError()), is_ours=True)
    with pytest.raises(RuntimeError, match="bug"):
        attempt(fail(RuntimeError("bug")), is_ours=True)
