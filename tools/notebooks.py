"""Run the notebooks of ``examples`` and keep what they show: ``make notebooks``.

    python tools/notebooks.py [FILE.ipynb ...]

They are their own source. What is written beside the cells is what a reader sees first: outputs
of one run, top to bottom, in a fresh process.
"""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

EXAMPLES = Path(__file__).parents[1] / "examples"
SECONDS = 300
"""For a cell, where other work has the machine."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # models are small
    "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm would like ipywidgets
}


def execute(file: Path, folder: Path) -> Any:
    """A notebook with the outputs of a new run; a cell that fails raises ``CellExecutionError``.

    Args:
        file: the notebook; it is not changed.
        folder: where its code runs.
    """
    notebook = nbformat.read(file, as_version=4)
    with tempfile.TemporaryDirectory() as sockets:  # so that no port is opened
        connection = {"transport": "ipc", "ip": str(Path(sockets) / "kernel")}
        NotebookClient(
            notebook,
            config=Config({"ConnectionFileMixin": connection}),
            timeout=SECONDS,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
        ).execute(env={**os.environ, **ENVIRONMENT})
    notebook.metadata.language_info = {"name": "python"}  # without the version of this machine
    return notebook


def main(arguments: Sequence[str]) -> None:
    """Run some notebooks, or all, and write them anew."""
    for file in map(Path, arguments) if arguments else sorted(EXAMPLES.glob("*.ipynb")):
        start = time.perf_counter()
        nbformat.write(execute(file, file.parent), file)
        sys.stdout.write(f"{time.perf_counter() - start:5.1f} s  {file.name}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
