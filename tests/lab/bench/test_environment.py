"""A result says where it comes from."""

import subprocess

import torch

import flashpoint
from flashpoint.lab.bench.environment import describe
from flashpoint.lab.runs.provenance import checkout_commit


def test_environment_names_machine_and_versions():
    found = describe()
    assert found.device
    assert found.driver is None
    assert found.threads == torch.get_num_threads()
    assert (found.torch, found.flashpoint) == (torch.__version__, flashpoint.__version__)
    assert found.time_utc.endswith("+00:00")


def test_commit_is_that_of_the_checkout_with_a_mark_for_changes(tmp_path):
    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        command = ("git", "-C", tmp_path, *identity, *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    file = tmp_path / "module.py"
    file.write_text("1")
    git("init")
    assert checkout_commit(file) is None
    git("add", ".")
    git("commit", "-m", "first")
    git("tag", "-a", "v1", "-m", "v1")
    commit = git("rev-parse", "HEAD")[:12]
    assert checkout_commit(file) == commit
    file.write_text("2")
    assert checkout_commit(file) == f"{commit}-dirty"


def test_file_outside_a_checkout_has_no_commit(tmp_path):
    (tmp_path / "module.py").write_text("1")
    assert checkout_commit(tmp_path / "module.py") is None


def test_copy_of_a_checkout_is_told_its_commit(monkeypatch):
    monkeypatch.setenv("FLASHPOINT_COMMIT", "abc123")
    assert describe().commit == "abc123"
