"""Limits of time and memory for input that must not hang or take all there is."""

import resource
import signal
from contextlib import contextmanager

from flashpoint.errors import InputError
from flashpoint.lab.data.image_source import BrokenImageError

TIME_S = 60
MEMORY = 2**30


@contextmanager
def limited(seconds=TIME_S, memory=MEMORY):
    """Fail after some seconds, and give no more memory than so many bytes beyond today's.

    For the main thread: others go on, and whoever waits for them waits.
    """

    def stop(*_):
        raise AssertionError(f"hangs: {seconds} s are over")

    with open("/proc/self/statm") as facts:
        held = int(facts.read().split()[0]) * resource.getpagesize()
    earlier_limits = resource.getrlimit(resource.RLIMIT_AS)
    earlier = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (held + memory, earlier_limits[1]))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
        resource.setrlimit(resource.RLIMIT_AS, earlier_limits)


def answer(call, longest=800):
    """What a call gives within the limits, and the one line it is refused with, or nothing."""
    with limited():
        try:
            return call(), ""
        except (InputError, BrokenImageError) as error:
            said = str(error)
    assert said
    assert "\n" not in said
    assert len(said) < longest
    return None, said
