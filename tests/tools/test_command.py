"""``flashpoint data prepare``: what a clone has and an installed package has not."""

import tomllib
from pathlib import Path

import pytest
import typer.testing

import flashpoint
from flashpoint.errors import UnsupportedError
from flashpoint.lab.cli.data import data
from flashpoint.lab.scaling.rates import STORED

ROOT = Path(__file__).parents[2]


def test_wheel_has_neither_tools_nor_a_reader_of_packages():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    carried = {name: f"flashpoint/{name}" for name in ("configs", *STORED)}
    assert build["targets"]["wheel"] == {
        "packages": ["src/flashpoint"],
        "force-include": carried,
    }
    for file in (ROOT / "src").rglob("*.py"):
        assert "!<arch>" not in file.read_text(), f"{file} reads Debian packages"


@pytest.mark.parametrize("name", ["cifar10", "en-de-docs", "nonsense"])
def test_installed_package_says_that_preparing_needs_a_clone(name, tmp_path, monkeypatch):
    installed = tmp_path / "lib" / "site-packages" / "flashpoint" / "__init__.py"
    monkeypatch.setattr(flashpoint, "__file__", str(installed))
    result = typer.testing.CliRunner().invoke(data, ["prepare", name])
    assert isinstance(result.exception, UnsupportedError)
    assert "needs a clone of Flashpoint's repository" in str(result.exception)
    assert "\n" not in str(result.exception)
