"""Install the wheel into a bare environment and use it there, first alone, then with the lab.

    python tools/try_wheel.py dist/flashpoint-0.1.0-py3-none-any.whl

The environment and all that is written lie in a temporary folder, outside the repository, so that
nothing is found by chance. Versions are those of constraints.txt.
"""

import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
LIBRARY = """# what a script of a user does
import sys
import torch
import flashpoint

assert "site-packages" in flashpoint.__file__, flashpoint.__file__
q, k, v = torch.randn(3, 1, 2, 8, 16, requires_grad=True).unbind()
flashpoint.attention(q, k, v, causal=True).sum().backward()
model = flashpoint.create_model("vit_s16", image_size=32, num_classes=3, depth=1)
assert model(torch.randn(1, 3, 32, 32)).shape == (1, 3)
layer = torch.nn.TransformerEncoderLayer(32, 4, dropout=0.0)
assert len(flashpoint.replace_attention(layer, "relu4/sum").replaced) == 1
assert not {"yaml", "rich", "typer", "plotly"} & set(sys.modules)
"""
WITHOUT_LAB = "error: the command line needs the extra 'lab'"
COMMANDS = (
    "--version",
    "doctor",
    "train configs/digits.yaml --set epochs=1",
    "evaluate runs/digits",
    "report runs/digits --out report.html",
    "study list",
    "plan --model vit_l16 --tokens 1048576 --gpus 256 --sequence 16",
)
"""Of the lab: with configs and stored benchmarks, which the wheel holds."""


class Failed(Exception):
    """A step that did not do what it should; the text says which."""


class Environment:
    """A bare virtual environment in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "environment" / "bin"
        kept = {name: x for name, x in os.environ.items() if not name.startswith("PYTHON")}
        own = {"PATH": f"{self.programs}:{kept['PATH']}", "OMP_NUM_THREADS": "1"}  # small models
        self.variables = kept | own
        venv.create(folder / "environment", with_pip=True)

    def install(self, what: str) -> None:
        """By pip, with pinned versions."""
        options = ("--quiet", "--no-compile", "--constraint", str(CONSTRAINTS))
        self.run(["python", "-m", "pip", "install", *options, what])

    def run(self, command: Sequence[str], status: int = 0) -> str:
        """What a program of the environment prints; it must end with this status."""
        start = time.perf_counter()
        done = subprocess.run(
            [self.programs / command[0], *command[1:]],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        words = " ".join(command).partition("\n")[0]
        if done.returncode != status:
            raise Failed(f"{words!r} ended with status {done.returncode}:\n{done.stdout}")
        sys.stdout.write(f"{time.perf_counter() - start:5.1f} s  {words}\n")
        return done.stdout


def try_wheel(wheel: Path, folder: Path) -> None:
    """Use the library alone, then the command line."""
    environment = Environment(folder)
    environment.install(str(wheel))
    environment.run(["python", "-c", LIBRARY])
    said = environment.run(["flashpoint"], status=2)
    if not said.startswith(WITHOUT_LAB):
        raise Failed(f"without the lab, flashpoint said: {said}")
    environment.install(f"{wheel}[lab]")
    for command in COMMANDS:
        environment.run(["flashpoint", *command.split()])


def main(arguments: Sequence[str]) -> int:
    """Try a wheel; 1 where something fails."""
    if len(arguments) != 1 or not arguments[0].endswith(".whl"):
        sys.stderr.write("usage: python tools/try_wheel.py FILE.whl\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        try:
            try_wheel(Path(arguments[0]).resolve(), Path(folder))
        except Failed as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
