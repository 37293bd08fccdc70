"""What tiny trials measure, or fail at; imported by every process of theirs, so it is small."""

import os
import signal
import sys
import time
from pathlib import Path


def add(options):
    return {"sum": options["x"] + options["y"], "nothing": float("nan")}


def die(options):
    """As the kernel does where memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def break_down(options):
    sys.stdout.write("about to divide\n")
    return {"never": 1 / 0}


def process(options):
    """Tell processes apart."""
    return {"pid": os.getpid()}


def sleep(options):
    begin = time.time()
    time.sleep(options["seconds"])
    return {"begin": begin, "end": time.time()}


def hang(options):
    """As one that waits for what never comes: no signal but SIGKILL ends it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.write(f"hangs in {os.getpid()}\n")
    sys.stdout.flush()
    time.sleep(600)
    return {}


def die_once(options):
    """The first time only: the second finds the file."""
    file = Path(options["file"])
    if file.exists():
        return {"times": 2}
    file.touch()
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def shout(options):
    """Past Python's own files, as libraries in C do."""
    os.write(1, b"from below\n")
    return {"loud": 1}


def stop(options):
    """As a run does that was asked to."""
    from flashpoint.lab.runs.failure import Preempted

    raise Preempted("stopped by SIGTERM.")


TINY_MEASURES = {
    function.__name__: function
    for function in (add, die, break_down, process, sleep, hang, die_once, shout, stop)
}
