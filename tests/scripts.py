"""Scripts beside the package, imported by their paths."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).parents[1]


def load_script(path):
    """The module that a script is; ``path`` is below the repository's root."""
    spec = spec_from_file_location(Path(path).stem, ROOT / path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
