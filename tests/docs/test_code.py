"""Code of README and docs: Python runs, page by page, and commands name what there is."""

import re
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import typer
from convert.conftest import timm, torchvision, transformers  # noqa: F401  fixtures

from flashpoint.lab.cli.main import app
from hub_kernel.layout import build

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LIBRARIES = {"timm": "timm", "hugging-face": "transformers", "hub-kernel": "hub_kernel"}
"""Fixtures that bring what a page needs, by the page's name."""


def blocks(page):
    """Language and text of a page's blocks of code."""
    return FENCED.findall((ROOT / page).read_text("utf-8"))


def python_of(page):
    """All Python of a page: later blocks go on where earlier ones end."""
    return "\n".join(code for language, code in blocks(page) if language == "python")


@pytest.fixture
def one_rank(monkeypatch, tmp_path):
    """A page that starts processes and makes meshes of them gets one, on a CPU."""
    start, rendezvous = dist.init_process_group, f"file://{tmp_path}/rendezvous"
    alone = {"rank": 0, "world_size": 1, "init_method": rendezvous}
    monkeypatch.setattr(dist, "init_process_group", lambda _: start("gloo", **alone))
    make = dist.init_device_mesh

    def mesh(_, sizes, **names):
        return make("cpu", (1,) * len(sizes), **names)

    yield {"x": torch.randn(2, 8, 512), "init_device_mesh": mesh}
    dist.destroy_process_group()


@pytest.fixture
def hub_kernel(tmp_path):
    """The page about the kernel for the Hub goes on where ``make hub-kernel`` ended."""
    pytest.importorskip("kernels")
    build(ROOT / "src" / "flashpoint", tmp_path / "build" / "hub-kernel")


@pytest.mark.parametrize("page", [page for page in PAGES if python_of(page)])
def test_python_runs(page, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for what a page saves
    name = Path(page).stem
    if name in LIBRARIES:
        request.getfixturevalue(LIBRARIES[name])
    given = request.getfixturevalue("one_rank") if name == "scaling" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of libraries
        warnings.simplefilter("ignore", FutureWarning)
        exec(compile(python_of(page), page, "exec"), given)


def commands(page):
    """What a page tells to type, as lists of words behind "flashpoint"."""
    for language, code in blocks(page):
        if language == "python":
            continue
        for part in re.split(r"\n|; |&& |\| ", re.sub(r" #.*", "", code)):
            if found := re.match(r"(?:torchrun .* -m )?flashpoint (.*)", part.strip()):
                yield found[1].split()


@pytest.mark.parametrize("page", [page for page in PAGES if [*commands(page)]])
def test_commands_have_verbs_and_options_that_exist(page):
    for words in commands(page):
        command = typer.main.get_command(app)
        given = iter(words)
        while hasattr(command, "commands"):
            command = command.commands.get(next(given, None))
            assert command, words
        known = {name for option in command.params for name in option.opts}
        assert {word for word in given if word.startswith("--")} <= known, words
