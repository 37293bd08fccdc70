"""Without a GPU, Triton's kernels are tested in its interpreter, which is chosen before import."""

import gc
import os
import random

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from implementations import HAS_TRITON, choose_cases

collect_ignore_glob = [] if HAS_TRITON else ["*/ops/gpu/*"]


def pytest_addoption(parser):
    parser.addoption("--every-case", action="store_true", help="leave out no case for its time")
    parser.addoption("--each-gpu", choices=("main", "all"), help="compile which kernels for each")
    parser.addoption("--kills", type=int, default=0, help="of each command in test_kills")
    parser.addoption("--kill-seed", type=int, help="of the moments of kills", metavar="N")
    parser.addoption("--shard", default="1/1", metavar="I/N", help="run every N-th test, from I")


@pytest.fixture
def kill_rng(request):
    """Draws moments to kill a process at; a test that fails shows the seed."""
    given = request.config.getoption("--kill-seed")
    seed = random.SystemRandom().randrange(2**32) if given is None else given
    print(f"--kill-seed {seed}")  # noqa: T201
    return random.Random(seed)


def pytest_configure(config):
    if HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1":
        import interpreter

        interpreter.hasten()
    config.addinivalue_line("markers", "interpreted(keep): cases that Triton's interpreter runs")
    config.addinivalue_line("markers", "long_interpreted: slow in Triton's interpreter")
    config.addinivalue_line("markers", "usual_tiles: Triton's tiles as they are, not quick ones")
    config.addinivalue_line("markers", "on_gpu(keep): cases that Triton's kernels run on a GPU")
    config.addinivalue_line("markers", "pairwise: all pairs of values meet, not all of them")


@pytest.hookimpl(tryfirst=True)  # before the choice by -m, which the marks below are for
def pytest_collection_modifyitems(config, items):
    """Drop the cases that an implementation does not serve, or that take too long here."""
    for item in items:
        has_browser = "browser" in getattr(item, "fixturenames", ())
        if has_browser or item.get_closest_marker("distributed"):
            item.add_marker("slow")
    kept = choose_cases(items, config.getoption("--every-case"))
    index, count = map(int, config.getoption("--shard").split("/"))
    kept = kept[index - 1 :: count]
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    # the longest first: begun last, it would keep one core while the others have nothing to do
    items[:] = sorted(kept, key=lambda item: item.get_closest_marker("longest") is None)


def pytest_collection_finish():
    """Let no collection of garbage walk through all that was imported: half a second each."""
    gc.freeze()
