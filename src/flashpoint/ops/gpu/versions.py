"""Which versions of Triton are supported, and what happens on others.

Our kernels are ordinary Triton and run on any version that compiles them. Two things lean on
names that Triton does not promise to keep: replays (``launcher.py``) and Gluon (``hopper/``).
A version that is not listed here gets neither. Its calls are launched by Triton's own way each
time, which costs the host some 0.1 ms a launch and changes no result.
"""

import functools
import re
import warnings
from typing import Any, Literal

import triton

Form = Literal["flat", "listed"]

# How the C launcher takes a kernel's arguments: behind its own, or as one list after them.
LAUNCHERS: dict[tuple[int, int], Form] = {
    (3, 5): "flat",
    (3, 6): "flat",
    (3, 7): "listed",
    (3, 8): "listed",
    (3, 9): "listed",
}
GLUON = ((3, 6), (3, 7), (3, 8), (3, 9))  # whose Gluon compiles the Hopper kernels


def installed() -> tuple[int, int]:
    """The first two numbers of the installed Triton's version; zeros where there are none."""
    found = re.match(r"(\d+)\.(\d+)(?!\d)", triton.__version__)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def launcher_form() -> Form | None:
    """How this Triton's C launcher takes arguments; None where it is not supported."""
    return LAUNCHERS.get(installed())


def has_supported_gluon() -> bool:
    """Whether the Hopper kernels are written in this Triton's Gluon."""
    return installed() in GLUON


def launch_options() -> dict[str, Any]:
    """Options of every launch: products and sums fuse. 3.9 warns where nobody says whether."""
    return {"enable_fp_fusion": True} if launcher_form() is not None else {}


def describe() -> str:
    """What ``flashpoint doctor`` says of the installed version."""
    if launcher_form() is None:
        return f"Triton {triton.__version__} is not supported yet ({_range()} are): slow launches"
    return f"Triton {triton.__version__} is supported"


@functools.cache
def warn_if_unsupported() -> None:
    """Tell once that this Triton is not supported, and what that costs."""
    if launcher_form() is None:
        warnings.warn(
            f"flashpoint supports Triton {_range()}, not yet {triton.__version__}. Results are "
            "right, but each launch costs the host about 0.1 ms more, and Hopper GPUs take the "
            "portable kernels. Install a supported version, or a newer flashpoint.",
            stacklevel=2,
        )


@functools.cache
def warn_of_launcher() -> None:
    """Tell once that a supported Triton's launcher is not as it was, and what that costs."""
    warnings.warn(
        f"Triton {triton.__version__} launches kernels in another way than flashpoint expects. "
        "Results are right, but launches cost the host more. Please report this.",
        stacklevel=2,
    )


def _range() -> str:
    oldest, newest = (".".join(map(str, at(LAUNCHERS))) for at in (min, max))
    return f"{oldest} to {newest}"
