"""Caches of their own for tests, which share only what a compiler made."""

from flashpoint.files import cache_folder

COMPILED = "native"
_SHARED = cache_folder() / COMPILED  # while no test has named another folder


def new_cache(folder):
    """A cache in a folder, empty but for kernels in C++; gives what FLASHPOINT_CACHE is to be.

    To compile one takes seconds, and the same source gives the same kernel. Where that is what a
    test is about, its cache is a plain folder.
    """
    _SHARED.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    (folder / COMPILED).symlink_to(_SHARED)
    return str(folder)
