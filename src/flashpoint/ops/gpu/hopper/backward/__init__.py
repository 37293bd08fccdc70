"""Backward for Hopper: a kernel, what its warps load, what its warpgroups compute."""
