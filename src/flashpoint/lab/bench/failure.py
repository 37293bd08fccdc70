"""A provider that cannot serve: the reason in a few words, where the run goes on."""

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from flashpoint.errors import FlashpointError

T = TypeVar("T")
MAX_REASON = 120

RIVAL_FAILURES = (Exception,)
"""Backends, compilers and versions of torch refuse in many ways, with assertions too."""
OUR_FAILURES = (FlashpointError, torch.OutOfMemoryError)
"""Anything else that Flashpoint raises is a bug and keeps its traceback."""


class Refused(Exception):
    """A provider gave no result; the message is the reason."""


def attempt(call: Callable[[], T], *, is_ours: bool) -> T:
    """What the call gives, or ``Refused``; warnings on the way are reasons, not noise."""
    failures = OUR_FAILURES if is_ours else RIVAL_FAILURES
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return call()
        except failures as error:
            if isinstance(error, torch.OutOfMemoryError):
                torch.cuda.empty_cache()
            messages = [str(warning.message) for warning in caught]
            raise Refused(explain(error, messages)) from error


def explain(error: BaseException, warned: list[str]) -> str:
    """Why there is no result, in one short line.

    SDPA says that no backend is left, and before that warns why each one is not used: the last
    line that is a reason counts.

    Example:
        >>> explain(RuntimeError("No available kernel. Aborting execution."), [
        ...     "Flash attention kernel not used because: (Triggered internally at a.cpp:1.)",
        ...     "Flash attention needs half precision. (Triggered internally at a.cpp:2.)",
        ...     "CuDNN attention has been runtime disabled."])
        'Flash attention needs half precision'
    """
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    reasons = [message.partition("(Triggered")[0].strip() for message in warned]
    told = [
        reason
        for reason in reasons
        if "attention" in reason.lower() and "disabled" not in reason
        if not reason.endswith("because:")
    ]
    is_refusal = "available kernel" in str(error) or "viable backend" in str(error)
    text = told[-1] if told and is_refusal else str(error) or type(error).__name__
    line = " ".join(text.partition("\n")[0].split()).rstrip(".")
    return line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 3]}..."
