import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mend_torchvision

TOOL = Path(mend_torchvision.__file__)


def test_lines_are_added_once(tmp_path):
    (tmp_path / "extension.py").write_text("import torch\n")
    for _ in range(2):
        mend_torchvision.mend(tmp_path)
    text = (tmp_path / "extension.py").read_text()
    assert text == "import torch\n" + mend_torchvision.LINES


@pytest.mark.slow
def test_environment_can_import_timm_then(tmp_path):
    """With a copy of the installed torchvision, mended if it needs it."""
    installed = importlib.util.find_spec("torchvision")
    if installed is None or importlib.util.find_spec("timm") is None:
        pytest.skip("torchvision or timm is not installed")
    without_binaries = shutil.ignore_patterns("*.so", "*.so.*", "__pycache__")
    source = Path(installed.origin).parent
    shutil.copytree(source, tmp_path / "torchvision", ignore=without_binaries)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, TOOL], env=environment, check=True, timeout=120)
    assert mend_torchvision.LINES in (tmp_path / "torchvision/extension.py").read_text()
    code = (
        "import timm, torch, torchvision\n"
        f"assert torchvision.__file__.startswith({str(tmp_path)!r})\n"
        "model = timm.create_model('vit_tiny_patch16_224', depth=1)\n"
        "print(tuple(model.eval()(torch.zeros(1, 3, 224, 224)).shape))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "(1, 1000)\n"
