"""Why a run cannot go on, or did not begin."""

from flashpoint.errors import FlashpointError


class RunError(FlashpointError):
    """A run stopped or was refused: a full disk, a folder in use, losses that are not finite.

    What was saved before is whole; the message says how to go on.
    """


class Preempted(FlashpointError):
    """The run was asked to stop, by SIGTERM or Ctrl-C, and saved a checkpoint first.

    The same command continues it.
    """
