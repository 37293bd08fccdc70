"""Memory that nobody has written yet is NaN here, so that a result left out shows."""

import os

import pytest
import torch
from implementations import HAS_GPU, HAS_TRITON

from flashpoint.ops.cpu.native import build, call

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic mode asks for it


@pytest.fixture(autouse=True)
def _nan_in_fresh_memory():
    """PyTorch's deterministic mode fills ``torch.empty`` and its kin: NaN, or the largest int."""
    usual = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(usual)


@pytest.fixture(autouse=HAS_TRITON)
def _quick_tiles(request, monkeypatch):
    """Tiles that cost little time here, but for tests with the mark ``usual_tiles``.

    The interpreter's time goes by the number of tiles. Compiling fp32 tiles of the usual size
    takes up to a minute.
    """
    if request.node.get_closest_marker("usual_tiles"):
        return
    from flashpoint.ops.gpu.portable import backward, backward_scored, forward

    size = 16 if HAS_GPU else 64
    quick = {"BLOCK_M": size, "BLOCK_N": size, "num_warps": 4, "num_stages": 1}
    places = {"forward_tiles": forward, "dkdv_tiles": backward, "dq_tiles": backward}
    for name, module in (places | {"scored_tiles": backward_scored}).items():
        usual = getattr(module, name)

        def tiles(call, usual=usual):
            replaced = not HAS_GPU or call.q.dtype == torch.float32
            return dict(quick) if replaced else usual(call)

        monkeypatch.setattr(module, name, tiles)


@pytest.fixture
def store(monkeypatch, tmp_path):
    """An empty store of measured tiles for one test; gives its file."""
    from flashpoint.ops.gpu import replay
    from flashpoint.ops.gpu.tiles import autotune, stored

    def forget():
        stored.forget()
        autotune._tried.clear()
        replay._recordings.clear()

    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FLASHPOINT_AUTOTUNE", raising=False)
    forget()
    yield tmp_path / "cache" / "tiles.json"
    forget()


@pytest.fixture
def threads():
    usual = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(usual)


@pytest.fixture
def used(monkeypatch, threads):
    """How often the kernel in C++ ran, which has four threads and cuts short keys, too."""
    counts = {"attend": 0, "differentiate": 0}
    usual = {name: getattr(call, name) for name in (*counts, "repeat")}

    def counted(name):
        def run(*args, **kwargs):
            results = usual[name](*args, **kwargs)
            if name == "repeat":
                if results is not None:
                    counts["attend" if len(results) == 1 else "differentiate"] += 1
            else:
                counts[name] += 1
            return results

        return run

    for name in usual:
        monkeypatch.setattr(call, name, counted(name))
    monkeypatch.setattr(call, "_plans", {})
    monkeypatch.setattr(call, "FEWEST_KEYS", 16)
    monkeypatch.setattr("flashpoint.ops.cpu.forward.SMALL", 0)
    threads(4)
    return counts


@pytest.fixture
def nothing_built(monkeypatch, tmp_path):
    """An empty cache; gives its folder."""
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build, "_found", {})
    return tmp_path / "native"
