"""Make torchvision importable beside a CPU build of torch; timm imports it.

    python tools/mend_torchvision.py     make runs it in the environment that it builds

PyPI's torchvision is built for CUDA. Beside a CPU torch its compiled operators do not load, and
its import fails over the names of two of them ("operator torchvision::nms does not exist"). Then
a few lines go behind its ``extension.py``, which declare these names. The operators themselves
stay missing, and torchvision says so where they are called. Nothing is done where it can be
imported, or is not installed.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

MISSING = "operator torchvision::nms does not exist"
LINES = """

if not _has_ops():  # declared by Flashpoint's tools/mend_torchvision.py, so that imports go on
    for _name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
"""


def main() -> None:
    """Mend the torchvision of this Python, if there is one that needs it."""
    spec = importlib.util.find_spec("torchvision")
    if spec is not None and spec.origin is not None and is_broken():
        mend(Path(spec.origin).parent)


def is_broken() -> bool:
    """Whether a new Python cannot import it for want of its operators."""
    command = [sys.executable, "-c", "import torchvision"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode != 0 and MISSING in done.stderr


def mend(package: Path) -> None:
    """Put the lines behind the package's ``extension.py``, once."""
    file = package / "extension.py"
    text = file.read_text()
    if LINES not in text:
        file.write_text(text + LINES)


if __name__ == "__main__":
    main()
