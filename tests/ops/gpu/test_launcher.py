"""Launches past Triton: what its C launcher gets, and when Triton must go its own way.

The installed Triton's own classes run here, with a C launcher and a driver that only take notes;
``make test-versions`` runs them with the oldest and the newest Triton that is known.
"""

import sys
from contextlib import nullcontext as nothing
from functools import partial
from importlib.util import find_spec, module_from_spec
from types import SimpleNamespace

import pytest
import torch
from implementations import HAS_TRITON

if not HAS_TRITON:
    pytest.skip("triton is not installed", allow_module_level=True)

import triton
from launcher_stand_ins import (
    STREAM,
    Kernel,
    Repeating,
    addresses_in,
    attend,
    describe,
    find,
    make,
    mapped,
    took_shortcut,
    values_of,
)
from triton import knobs
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from flashpoint.ops.gpu import launcher, replay, versions


@pytest.fixture
def made(monkeypatch):
    """A driver without a GPU; gives the addresses it made descriptors of."""
    addresses = []

    def fill(address, *rest):
        addresses.append(address)
        return ("map", address, repr(rest))

    active = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda _: STREAM,
        utils=SimpleNamespace(fill_tma_descriptor=fill, fill_tma_descriptor_tiled=fill),
    )
    monkeypatch.setattr(driver, "_active", active)
    return addresses


@pytest.fixture
def call(monkeypatch, made):
    """Calls a kernel on q and k, recorded and then replayed; gives what the C launcher got."""
    monkeypatch.setattr(replay, "Recorder", Repeating)
    monkeypatch.setattr(replay, "_recordings", {})

    def call(kernel, q, k, describe=describe):
        first_call = partial(attend, kernel, describe=describe)
        inputs = {"q": q, "k": k}
        (o,) = replay.run_recorded("attend", inputs, (), ("o",), first_call)
        return kernel.notes[-1], o

    return call


@pytest.mark.parametrize("described", [True, False], ids=["described", "pointers"])
def test_moved_tensors_reach_the_launcher_as_by_triton(call, described, monkeypatch):
    kernel = Kernel(described)
    how = describe if described else (lambda x: x)
    call(kernel, *make(), how)
    q, k = make()
    short, o = call(kernel, q, k, how)
    monkeypatch.setattr(replay, "is_watched", lambda: True)
    monkeypatch.setattr(replay.torch, "empty", lambda *_, **__: o)  # at the same address
    own, _ = call(kernel, q, k, how)
    assert took_shortcut(short)
    assert not took_shortcut(own)
    assert addresses_in(short) == addresses_in(own)
    assert short.stream == STREAM
    found = [*mapped(short), *short.arguments]
    assert all(x.data_ptr() in found for x in (q, k, o))


@pytest.mark.parametrize("which", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize("is_chain", [True, False], ids=["chain", "function"])
def test_hooks_are_told_of_replays(call, monkeypatch, which, is_chain):
    kernel = Kernel()
    call(kernel, *make())
    hook = knobs.HookChain()
    monkeypatch.setattr(knobs.runtime, which, hook)
    assert took_shortcut(call(kernel, *make())[0])
    told = []
    hook.add(told.append)
    if not is_chain:
        monkeypatch.setattr(knobs.runtime, which, told.append)
    given, _ = call(kernel, *make())
    assert not took_shortcut(given)
    assert getattr(knobs.runtime, which) in given.hooks


@pytest.fixture
def warned_anew():
    """A process is told of a changed launcher once; here each test."""
    versions.warn_of_launcher.cache_clear()
    yield
    versions.warn_of_launcher.cache_clear()


OWN_WORK = {
    "global scratch": {"global_scratch_size": 8},
    "profile scratch": {"profile_scratch_size": 8},
    "sanitizer": {"gsan_enabled": True},
    "no maps": {"metas": 0},
}


@pytest.mark.parametrize("changes", OWN_WORK.values(), ids=OWN_WORK)
def test_kernels_that_need_triton_have_no_shortcut(changes, made):
    values = values_of(*map(describe, make()))
    assert find(Kernel(), values) is not None
    assert find(Kernel(**changes), values) is None
    assert find(Kernel(), values_of(describe(make()[0]), make()[0])) is None


def without_pdl():
    kernel = Kernel()
    del kernel.compiled.run.launch_pdl
    return kernel


OTHERS = {
    "another function": lambda: Kernel(launch=lambda *_: None),
    "no function": lambda: Kernel(launch=print),
    "no launcher": lambda: SimpleNamespace(compiled=object(), arg_names=Kernel.arg_names),
    "no such field": without_pdl,
}


@pytest.mark.parametrize("kernel", OTHERS.values(), ids=OTHERS)
@pytest.mark.usefixtures("warned_anew")
def test_launchers_of_another_form_have_no_shortcut(kernel, made):
    with pytest.warns(UserWarning, match="in another way"):
        assert find(kernel(), values_of(*map(describe, make()))) is None


def test_replays_without_a_shortcut_go_by_triton(call, monkeypatch):
    kernel = Kernel()
    kernel.compiled.run.global_scratch_size = 8
    allocator = SimpleNamespace(get=lambda: lambda *_: 5)
    monkeypatch.setattr("triton.runtime._allocation._allocator", allocator)
    call(kernel, *make())
    q, k = make()
    given, o = call(kernel, q, k)
    assert not took_shortcut(given)
    assert any(x is o for x in given.arguments)
    assert mapped(given) == [q.data_ptr(), k.data_ptr()]


@pytest.fixture
def install(monkeypatch):
    """Makes the installed Triton say that it is another version."""

    def install(version):
        monkeypatch.setattr(triton, "__version__", version)
        versions.warn_if_unsupported.cache_clear()

    yield install
    versions.warn_if_unsupported.cache_clear()


@pytest.mark.parametrize("version", ["3.10.0", "3.4.0", "3.99.1+git", "4.0.0", "3.55.0", "main"])
def test_calls_of_an_unsupported_triton_go_its_own_way_each_time(
    monkeypatch, made, install, version
):
    """Nothing of it is remembered, and its users are told once."""
    install(version)
    monkeypatch.setattr(replay, "_recordings", {})
    kernel = Kernel()
    assert not replay.Recorder(SimpleNamespace(is_cuda=True)).is_repeatable
    assert find(kernel, values_of(*map(describe, make()))) is None
    for turn in range(3):
        q, k = make()
        first_call = partial(attend, kernel)
        with (
            pytest.warns(UserWarning, match=r"supports Triton 3.5 to 3.9, not yet")
            if turn == 0
            else nothing()
        ):
            (o,) = replay.run_recorded("attend", {"q": q, "k": k}, (), ("o",), first_call)
        given = kernel.notes[-1]
        assert any(x is o for x in given.arguments)
        assert mapped(given) == [q.data_ptr(), k.data_ptr()]
    assert not replay._recordings
    assert version in versions.describe()
    assert "not supported yet" in versions.describe()


@pytest.mark.parametrize("version", ["3.5.1", "3.6.0", "3.7.0+git1a2b", "3.8.0", "3.9.2"])
def test_supported_versions_are_known_by_their_first_numbers(install, version):
    install(version)
    versions.warn_if_unsupported()
    assert versions.launcher_form() is not None
    assert versions.has_supported_gluon() == (not version.startswith("3.5."))
    assert versions.describe() == f"Triton {version} is supported"


def test_all_that_a_descriptor_holds_comes_along(call):
    """A field that a later Triton adds reaches replays, since descriptors are copied whole."""

    def describe_newly(x):
        made = describe(x)
        made.padding, made.of_tomorrow = "nan", 7
        return made

    first, second = (describe_newly(x) for x in make())
    moved = launcher.described(first, second.base)
    assert vars(moved) == vars(second) | {"base": second.base}
    assert first.base is not second.base
    kernel = Kernel()
    call(kernel, *make(), describe_newly)
    (recorder,) = replay._recordings.values()
    (launch,) = recorder.launches
    assert [(d.base, d.of_tomorrow) for _, _, d in launch.descriptors] == [(None, 7)] * 2
    given, _ = call(kernel, *make(), describe_newly)
    maps = [x for x in given.arguments if isinstance(x, tuple) and x[0] == "map"]
    assert all(rest.endswith(" 1)") for *_, rest in maps)  # padding with NaN is 1


def call_twice_more(call, kernel):
    """Both go Triton's own way, with one warning."""
    for turn in range(2):
        q, k = make()
        with pytest.warns(UserWarning, match="in another way") if turn == 0 else nothing():
            given, o = call(kernel, q, k)
        assert not took_shortcut(given)
        assert any(x is o for x in given.arguments)
        assert mapped(given) == [q.data_ptr(), k.data_ptr()]


@pytest.mark.parametrize("error", [TypeError, ValueError, SystemError, AttributeError])
@pytest.mark.usefixtures("warned_anew")
def test_launcher_that_takes_other_arguments_is_left_to_triton(call, error):
    """A patch release may change what nobody promised to keep: one warning, and right results."""
    kernel = Kernel()
    call(kernel, *make())
    (recorder,) = replay._recordings.values()

    def launch(*_):
        raise error("function takes exactly 17 arguments")

    recorder.shortcuts[:] = [shortcut._replace(launch=launch) for shortcut in recorder.shortcuts]
    call_twice_more(call, kernel)


@pytest.mark.usefixtures("warned_anew")
def test_another_thread_that_gives_up_takes_no_launch_away(call):
    """A replay that is under way then goes Triton's own way too, or by all of its shortcuts."""
    kernel = Kernel()
    call(kernel, *make())
    (recorder,) = replay._recordings.values()
    recorder.launches *= 2
    (own,) = recorder.shortcuts
    others, q, k = iter([True]), *make()

    def launch_while_another_replays(*given):
        if next(others, False):
            call(kernel, *make())
        own.launch(*given)

    def refuse(*_):
        raise TypeError("function takes exactly 17 arguments")

    changed = (launch_while_another_replays, refuse)
    recorder.shortcuts[:] = [own._replace(launch=launch) for launch in changed]
    with pytest.warns(UserWarning, match="in another way"):
        _, o = call(kernel, q, k)
    last = kernel.notes[-2:]
    assert not any(map(took_shortcut, last))
    assert all(any(x is o for x in given.arguments) for given in last)


@pytest.mark.parametrize("error", [AttributeError, ImportError])
@pytest.mark.usefixtures("warned_anew")
def test_hooks_and_streams_of_another_name_are_left_to_triton(call, monkeypatch, error):
    kernel = Kernel()
    call(kernel, *make())

    def asked():
        raise error("no such hook")

    monkeypatch.setattr(replay, "is_watched", asked)
    call_twice_more(call, kernel)


def test_error_of_the_gpu_is_not_hidden(call):
    kernel = Kernel()
    call(kernel, *make())
    (recorder,) = replay._recordings.values()

    def launch(*_):
        raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")

    recorder.shortcuts[:] = [shortcut._replace(launch=launch) for shortcut in recorder.shortcuts]
    with pytest.raises(RuntimeError, match="illegal memory access"):
        call(kernel, *make())


class Sealed(TensorDescriptor):
    """Refuses another base, as a frozen class would."""

    def __setattr__(self, name, value):
        if name == "base" and "base" in vars(self):
            raise AttributeError("cannot assign to field 'base'")
        super().__setattr__(name, value)


@pytest.mark.usefixtures("warned_anew")
def test_descriptors_that_cannot_be_copied_are_launched_by_triton_each_time(call):
    def describe_sealed(x):
        return Sealed(x, list(x.shape), list(x.stride()), [1, 16])

    kernel = Kernel()
    for turn in range(3):
        q, k = make()
        with pytest.warns(UserWarning, match="in another way") if turn == 0 else nothing():
            given, o = call(kernel, q, k, describe_sealed)
        assert any(x is o for x in given.arguments)
        assert mapped(given) == [q.data_ptr(), k.data_ptr()]
    assert not replay._recordings


@pytest.mark.parametrize("error", [ValueError, IndexError, AssertionError, RuntimeError])
@pytest.mark.usefixtures("warned_anew")
def test_descriptions_that_fail_leave_no_shortcut(made, monkeypatch, error):
    def fail(*_):
        raise error("another kind of descriptor")

    kernel = Kernel()
    monkeypatch.setattr(launcher, "_take_apart", lambda launch: (launch, [fail, fail]))
    with pytest.warns(UserWarning, match="in another way"):
        assert find(kernel, values_of(*map(describe, make()))) is None


def test_first_call_asks_nothing_of_triton_that_may_be_gone(made, monkeypatch):
    """Hooks and drivers are looked up by replays alone, which only known versions have."""
    monkeypatch.setitem(sys.modules, "triton.knobs", None)
    monkeypatch.delattr(triton, "knobs")
    for name in ("launcher", "replay"):
        spec = find_spec(f"flashpoint.ops.gpu.{name}")
        spec.loader.exec_module(module_from_spec(spec))


def test_descriptors_are_made_once_for_an_address(call, made):
    kernel = Kernel()
    call(kernel, *make())
    made.clear()
    q, k, other_q, other_k = make(4)
    for pair in ((q, k), (other_q, other_k), (q, k), (other_q, k)):
        given, _ = call(kernel, *pair)
        assert mapped(given) == [x.data_ptr() for x in pair]
    assert made == [x.data_ptr() for x in (q, k, other_q, other_k)]


def test_remembered_descriptors_are_bounded(monkeypatch):
    monkeypatch.setattr(launcher, "MOST_MAPS", 3)
    maps = launcher.Maps(lambda address: -address)
    for address in range(10):
        assert maps[address] == -address
        assert len(maps) <= 3


def test_parts_of_a_tensor_have_their_addresses(monkeypatch, made):
    kernel = Kernel(described=False)
    x = torch.zeros(2, 5, 3, 4, 8, dtype=torch.bfloat16)
    recorder = Repeating(x)
    parts = dict(zip("qk", x.unbind(2), strict=False))
    attend(kernel, recorder, parts, describe=lambda part: part)
    moved = torch.zeros_like(x)
    for is_watched in (False, True):
        monkeypatch.setattr(replay, "is_watched", lambda is_watched=is_watched: is_watched)
        recorder.replay({"qkv": moved}, {"qkv": moved.data_ptr()}, moved)
        q, k, _ = moved.unbind(2)
        given = addresses_in(kernel.notes[-1])
        assert given.arguments[:2] == [q.data_ptr(), k.data_ptr()]


def test_calls_of_other_options_share_no_recording(monkeypatch, made):
    monkeypatch.setattr(replay, "Recorder", Repeating)
    monkeypatch.setattr(replay, "_recordings", {})
    q, k = make()
    kernels = {options: Kernel() for options in [("relu", 0.5), ("relu", 1.0), ("silu", 0.5)]}
    for _ in range(2):
        for options, kernel in kernels.items():
            first_call = partial(attend, kernel)
            replay.run_recorded("attend", {"q": q, "k": k}, options, ("o",), first_call)
    assert [len(kernel.notes) for kernel in kernels.values()] == [2, 2, 2]
    assert len(replay._recordings) == 3
