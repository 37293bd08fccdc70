"""Launches that are remembered and replayed where there is no GPU, by addresses as on one."""

import itertools
from functools import partial

import torch

from flashpoint.ops.gpu import replay
from flashpoint.ops.gpu.launcher import Maps, Shortcut, described


class Addressed(replay.Recorder):
    """Records here too, and replays by real shortcuts, whose C launcher is the kernel itself."""

    replays = 0

    def __init__(self, like):
        super().__init__(like)
        self.is_repeatable = True
        self.memory: list[torch.Tensor] = []

    def launch(self, kernel, num_programs, arguments, roles=replay.NO_ROLES):
        super().launch(kernel, num_programs, arguments, roles)
        if not self.is_repeatable:
            return
        last = self.launches[-1]._replace(compiled=kernel)
        values = [arguments[name] for name in kernel.arg_names]
        dtypes = {at: values[at].dtype for at, _ in last.tensors}

        def start(*given):
            *grid, _, values = given
            found = {at: self.find(values[at], dtype) for at, dtype in dtypes.items()}
            kernel[tuple(grid)](*(found.get(at, value) for at, value in enumerate(values)))

        def describe(at, descriptor, address):
            return described(descriptor, self.find(address, values[at].base.dtype))

        maps = [(at, role, Maps(partial(describe, at, x))) for at, role, x in last.descriptors]
        own = [*last.grid, None]
        shortcut = Shortcut(start, own, last.arguments, "listed", last.tensors, maps)
        self.launches[-1] = last._replace(shortcut=shortcut)
        self.shortcuts.append(shortcut)

    def empty(self, role, shape, dtype):
        assert role not in self.buffers, "a replay would make one buffer of two"
        return super().empty(role, shape, dtype)

    def find(self, address, dtype):
        """What lies at an address, which must be in a tensor of this call."""
        for x in self.memory:
            storage = x.untyped_storage()
            offset = address - storage.data_ptr()
            if 0 <= offset < storage.nbytes():
                return torch.empty(0, dtype=dtype).set_(storage, offset // dtype.itemsize, (1,))
        raise AssertionError("the address of no tensor of this call")

    def _replay_past_triton(self, tensors, addresses, device):
        self.memory = [x for x in tensors.values() if x is not None]
        for *_, maps in itertools.chain(*(shortcut.maps for shortcut in self.shortcuts)):
            maps.clear()  # of the tensors of calls before
        Addressed.replays += 1
        return super()._replay_past_triton(tensors, addresses, device)


class Refusing(Addressed):
    """The last launch of a replay fails: all of them are then repeated by Triton's own way."""

    def _replay_past_triton(self, tensors, addresses, device):
        def refuse(*_):
            raise TypeError("function takes exactly 17 arguments")

        kept = list(self.shortcuts)
        self.shortcuts[-1] = kept[-1]._replace(launch=refuse)
        assert not super()._replay_past_triton(tensors, addresses, device)
        self.shortcuts[:] = kept
        return False


def without_a_gpu(monkeypatch):
    """The recordings of one test; no GPU is asked for its stream."""
    made = {}
    monkeypatch.setattr(replay, "_recordings", made)
    monkeypatch.setattr(replay, "is_watched", lambda: False)
    monkeypatch.setattr(replay, "current_stream", lambda _: 0)
    monkeypatch.setattr(replay.versions, "warn_of_launcher", lambda: None)
    monkeypatch.setattr(Addressed, "replays", 0)
    return made
