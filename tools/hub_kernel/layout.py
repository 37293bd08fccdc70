"""The folder that the ``kernels`` package loads: a build for any device, its metadata, a card.

Kernels of several versions may be loaded in one process. So the name under which a build
registers its operators with PyTorch holds a hash of what it was made of.
"""

import hashlib
import json
import shutil
from pathlib import Path

from hub_kernel.sources import find_modules, make_relative

NAME = "flashpoint"
VARIANT = "torch-universal"
API = {
    "errors": ("FlashpointError", "InputError", "UnsupportedError"),
    "ops.activation": ("Activation", "register_activation"),
    "ops.api": ("attention", "attention_qkvpacked", "attention_varlen"),
    "ops.qk_norm": ("HeadNorm",),
    "ops.sdpa": ("scaled_dot_product_attention",),
    "version": ("__version__",),
}
"""What the kernel offers, by module."""
NAMESPACE = "ops.namespace"
KERNEL_VERSION = 1
"""Of the interface; the loader asks for whole numbers."""
OLDEST_LOADER = "0.17.0"
"""Of the versions of ``kernels`` that read such metadata."""
COMPILED = (".cpp", ".h")
"""Sources beside the modules, which are compiled where they are used."""
_CARD = Path(__file__).with_name("card.md")


def build(package: Path, out: Path) -> Path:
    """Write the layout anew.

    Args:
        package: folder of flashpoint's sources.
        out: the kernel's folder; an earlier one is replaced.

    Returns:
        The folder of the build.
    """
    texts = {
        file.relative_to(package): make_relative(
            module, file.read_text("utf-8"), is_package=file.name == "__init__.py"
        )
        for module, file in sorted(find_modules(package, API).items())
    }
    texts |= {
        file.relative_to(package): file.read_text("utf-8")
        for folder in {place.parent for place in texts}
        for file in (package / folder).iterdir()
        if file.suffix in COMPILED
    }
    texts[Path("__init__.py")] = _front()
    name = f"_{NAME}_universal_{_digest(texts)}"
    texts[Path(*NAMESPACE.split(".")).with_suffix(".py")] = _namespace(name)
    shutil.rmtree(out, ignore_errors=True)
    folder = out / "build" / VARIANT
    for place, text in texts.items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    (folder / "metadata.json").write_text(json.dumps(_metadata(name), indent=2) + "\n", "utf-8")
    shutil.copyfile(_CARD, out / "README.md")
    return folder


def _front() -> str:
    imports = "".join(f"from .{module} import {', '.join(API[module])}\n" for module in API)
    names = ", ".join(f'"{name}"' for module in API for name in API[module])
    return f'"""Attention without softmax, exact and fast."""\n\n{imports}\n__all__ = [{names}]\n'


def _namespace(name: str) -> str:
    return f'"""Where PyTorch has this build\'s operators."""\n\nNAMESPACE = "{name}"\n'


def _metadata(name: str) -> dict[str, object]:
    """As the loader reads it; it wants a kind of device, though the build serves CPUs, too."""
    return {
        "name": NAME,
        "id": name,
        "version": KERNEL_VERSION,
        "kernels-minver": OLDEST_LOADER,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda"},
    }


def _digest(texts: dict[Path, str]) -> str:
    whole = hashlib.sha256()
    for place in sorted(texts):
        whole.update(f"{place.as_posix()}\0{texts[place]}\0".encode())
    return whole.hexdigest()[:10]
