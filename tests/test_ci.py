"""What ``make test`` leaves out and ``.ci/run`` does not; and pages are tested in a browser there.

The script runs with stand-ins for what it calls.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from lab.conftest import find_chromium

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / ".ci" / "run"
CALLED = """#!/bin/bash
echo "$(basename $0) $*, browser $FLASHPOINT_REQUIRE_BROWSER" >> {log}
[[ $2 != {failing} ]]
"""


@pytest.fixture
def ci(tmp_path):
    """Run the script where only some commands exist; gives its errors and what it called."""
    folder, log = tmp_path / "bin", tmp_path / "log"
    folder.mkdir()
    log.touch()
    for name in ("bash", "dirname", "basename", "nice", "cat", "mktemp", "rm"):
        (folder / name).symlink_to(shutil.which(name))

    def run(*commands, user=0, failing="none"):
        texts = {"id": f"#!/bin/bash\necho {user}\n"}
        texts |= dict.fromkeys(("make", *commands), CALLED.format(log=log, failing=failing))
        for name, text in texts.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        done = subprocess.run(
            [str(folder / "bash"), str(SCRIPT)],
            env={"PATH": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done, log.read_text().splitlines()

    return run


@pytest.mark.parametrize("name", ["chromium", "chromium-browser"])
def test_browser_that_is_there_is_required_of_the_tests(ci, name):
    done, called = ci(name, "apt-get")
    assert done.returncode == 0, done.stderr
    assert "make --no-print-directory test-all, browser 1" in called
    assert not [line for line in called if line.startswith("apt-get")]


def test_every_target_that_checks_a_change_is_made(ci):
    """Other versions are tested beside the rest, once lint has passed."""
    _, called = ci("chromium")
    targets = [line.partition(",")[0].split()[2] for line in called]
    assert targets[:2] == [".venv/.installed", "lint"]
    beside = [target for target in targets if "versions" in target]
    assert beside == ["versions", "test-versions"]
    rest = [target for target in targets[2:] if target not in beside]
    assert rest == ["docs-numbers", "docs", "try-wheel", "demo", "bench", "test-all"]


def test_hosted_workflow_runs_the_same_script():
    """As root on Debian, where the script can install what is missing."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    (job,) = workflow["jobs"].values()
    assert "bash .ci/run" in [step.get("run") for step in job["steps"]]
    assert job["container"].startswith("python:3.11-")


def test_other_versions_that_fail_fail_the_whole(ci):
    done, called = ci("chromium", failing="test-versions")
    assert done.returncode != 0
    assert [line for line in called if " test-all," in line]


@pytest.mark.parametrize("target", ["lint", "versions"])
def test_target_that_fails_is_the_end(ci, target):
    done, called = ci("chromium", failing=target)
    assert done.returncode != 0
    assert not [line for line in called if " test-versions," in line]


def test_what_a_contributor_does_not_run_is_what_bears_the_mark():
    def command_of(target):
        made = [
            "make",
            "--no-print-directory",
            "--dry-run",
            "--assume-old=.venv/.installed",
            target,
        ]
        done = subprocess.run(made, cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[-1]

    assert command_of("test") == command_of("test-all") + ' -m "not slow"'


def test_missing_browser_is_installed_before_anything_else(ci):
    done, called = ci("apt-get")
    assert done.returncode == 0, done.stderr
    first, second, third, *_ = called
    assert first.startswith("apt-get -qq update")
    assert second.startswith("apt-get -qq install -y --no-install-recommends chromium")
    assert third.startswith("make ")


@pytest.mark.parametrize(("commands", "user"), [((), 0), (("apt-get",), 1000)])
def test_browser_that_cannot_be_installed_is_one_line(ci, commands, user):
    done, called = ci(*commands, user=user)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: no chromium is on the PATH; to install it takes root and")
    assert called == []


def test_missing_browser_fails_tests_where_one_is_required(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("FLASHPOINT_REQUIRE_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception):
        find_chromium()
    monkeypatch.setenv("FLASHPOINT_REQUIRE_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="no chromium is on the PATH"):
        find_chromium()
