"""``python -m hub_kernel [--out DIR]``: write the kernel's folder, by default build/hub-kernel."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hub_kernel.layout import build

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="hub_kernel", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "hub-kernel", metavar="DIR")
    out: Path = parser.parse_args(arguments).out
    folder = build(ROOT / "src" / "flashpoint", out)
    count = sum(1 for _ in folder.rglob("*.py"))
    sys.stdout.write(f"{out}: {count} modules; load it with kernels.get_local_kernel\n")


if __name__ == "__main__":
    main()
