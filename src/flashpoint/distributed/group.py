"""From what users pass to a process group."""

import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from flashpoint.errors import InputError, UnsupportedError, describe

Mesh = DeviceMesh | ProcessGroup | None


def group_of(mesh: Mesh) -> ProcessGroup:
    """The group of ranks that a sequence lies on; None means all ranks."""
    if not (dist.is_available() and dist.is_initialized()):
        raise UnsupportedError(
            "torch.distributed is not initialized. Start by torchrun and call "
            "torch.distributed.init_process_group first."
        )
    if isinstance(mesh, DeviceMesh):
        if mesh.ndim != 1:
            names = mesh.mesh_dim_names or ("...",)
            raise InputError(
                f"the mesh has {mesh.ndim} dimensions, {', '.join(names)}; a sequence lies on "
                "one. Pass that one: mesh['sequence']."
            )
        if mesh.get_coordinate() is None:
            raise InputError(
                f"rank {dist.get_rank()} is not in the mesh, which has ranks "
                f"{mesh.mesh.tolist()}. It has no part of that sequence."
            )
        return mesh.get_group()
    if mesh is None:
        world = dist.group.WORLD
        assert world is not None
        return world
    if not isinstance(mesh, ProcessGroup):
        raise InputError(
            f"expected a process group or a DeviceMesh of one dimension. Got {describe(mesh)}. "
            "A rank outside a group has no part of its sequence."
        )
    return mesh
