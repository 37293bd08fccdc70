"""Packages by apt: what is there stays, what is missing comes, and what goes wrong is said."""

import os
import re

import pytest

from data_preparation.fetching import fetch_packages, require_packages
from flashpoint.errors import InputError, UnsupportedError

APT = """#!/bin/sh
echo "$*" >> {log}
for name; do :; done
case $name in
  unknown) echo "E: Unable to locate package unknown" >&2; exit 100;;
  offline) echo "Err:1 http://deb.debian.org offline" >&2
    echo "E: Failed to fetch http://deb.debian.org/x.deb  Temporary failure resolving" >&2
    exit 100;;
  full) echo half > full_1.0_all.deb
    echo "E: Write error - No space left on device" >&2
    exit 100;;
  nothing) exit 0;;
  killed) echo half > killed_1.0_all.deb; kill -9 $$;;
esac
echo "W: Download is performed unsandboxed" >&2
echo whole > "$name"_2%3a1.0_all.deb
"""


@pytest.fixture
def apt(tmp_path, monkeypatch):
    """A made-up apt-get; gives the list of what it was asked for."""
    program, log = tmp_path / "bin" / "apt-get", tmp_path / "log"
    program.parent.mkdir()
    program.write_text(APT.format(log=log))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return lambda: re.findall(r"download --quiet (.*)", log.read_text()) if log.exists() else []


def test_packages_are_downloaded_once_and_reported(tmp_path, apt):
    said = []
    found = fetch_packages(["one", "two"], tmp_path / "cache", said.append)
    assert [(name, file.name) for name, file in found.items()] == [
        ("one", "one_2%3a1.0_all.deb"),
        ("two", "two_2%3a1.0_all.deb"),
    ]
    assert {file.parent for file in found.values()} == {tmp_path / "cache"}
    assert said == ["downloading one (1 of 2)", "downloading two (2 of 2)"]
    assert fetch_packages(["two", "one", "three"], tmp_path / "cache", said.append).keys() == {
        *("one", "two", "three")
    }
    assert apt() == ["one", "two", "three"]


@pytest.mark.parametrize("name", ["full", "killed"])
def test_a_broken_download_is_not_taken_and_the_rest_is_kept(tmp_path, apt, name):
    with pytest.raises(InputError, match=f"{name} cannot be downloaded"):
        fetch_packages(["one", name], tmp_path, list)
    assert sorted(file.name for file in tmp_path.glob("*.deb")) == ["one_2%3a1.0_all.deb"]
    with pytest.raises(InputError):
        fetch_packages(["one", name], tmp_path, list)
    assert apt() == ["one", name, name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unknown", "apt knows no package unknown. Run `apt-get update` as root first"),
        ("offline", "offline cannot be downloaded: .* Is there a network"),
        ("full", "Write error - No space left on device"),
        ("nothing", "apt-get gave no reason"),
    ],
)
def test_refusals_are_one_line_that_says_what_to_do(tmp_path, apt, name, message):
    with pytest.raises(InputError, match=message) as caught:
        fetch_packages([name], tmp_path, list)
    assert f"`apt-get download {name}`" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_apt_the_way_around_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match=r"no apt-get on this machine.*--from DIR"):
        fetch_packages(["one"], tmp_path / "cache", list)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "one_1_all.deb").touch()
    assert fetch_packages(["one"], tmp_path / "cache", list)


def test_folders_of_the_user_must_hold_all(tmp_path):
    (tmp_path / "man_1_all.deb").touch()
    (tmp_path / "man-de").mkdir()
    assert require_packages(["man", "man-de"], tmp_path).keys() == {"man", "man-de"}
    with pytest.raises(InputError, match=r"holds 1 of the 3 packages.*download man-dev other"):
        require_packages(["man", "man-dev", "other"], tmp_path)
    with pytest.raises(InputError, match="is no folder"):
        require_packages(["man"], tmp_path / "nowhere")


def test_the_newest_version_counts(tmp_path):
    for number, name in enumerate(("man_10_all.deb", "man_9_all.deb")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (number, number))
    assert require_packages(["man"], tmp_path)["man"].name == "man_9_all.deb"
