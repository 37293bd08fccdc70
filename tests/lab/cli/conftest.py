"""The command line in a folder of its own."""

from dataclasses import replace

import pytest
from lab.study.tiny import STUDY, use_in_processes, use_registry
from typer.testing import CliRunner

from flashpoint.errors import FlashpointError
from flashpoint.lab.cli.main import app

SMALL = replace(
    STUDY,
    name="small",
    question="What is left?",
    plan=lambda settings: STUDY.plan(settings)[-1:],
)
"""Of which the measurement is left."""


@pytest.fixture
def study(monkeypatch, tmp_path, tmp_path_factory):
    """Run ``flashpoint study ARGUMENTS`` in a folder of its own; gives status and output."""
    use_registry(monkeypatch, STUDY, SMALL)
    use_in_processes(monkeypatch, tmp_path_factory.mktemp("site"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments):
        result = CliRunner().invoke(app, ["study", *map(str, arguments)])
        if isinstance(result.exception, FlashpointError):
            raise result.exception
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        return result

    return run
