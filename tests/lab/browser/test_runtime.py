"""Where the page's runtime comes from, with an npm that is not the real one."""

import base64
import hashlib
import io
import os
import tarfile

import pytest

from flashpoint.errors import InputError, UnsupportedError
from flashpoint.lab.browser import runtime
from flashpoint.lab.browser.runtime import FILE, PACKAGE, read_runtime

MEMBERS = {
    "ort.wasm.min.js": b"script",
    "ort-wasm-simd-threaded.mjs": b"loader",
    "ort-wasm-simd-threaded.wasm": b"program",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A small package that counts as the real one; an empty cache; nothing on the path."""
    file = tmp_path / "package.tgz"
    with tarfile.open(file, "w:gz") as members:
        for name, content in MEMBERS.items():
            member = tarfile.TarInfo(f"package/dist/{name}")
            member.size = len(content)
            members.addfile(member, io.BytesIO(content))
    checksum = base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode()
    monkeypatch.setattr(runtime, "SHA512", checksum)
    monkeypatch.setattr(runtime, "find_spec", lambda name: None)
    monkeypatch.setenv("FLASHPOINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return file


def add_npm(folder, script):
    (folder / "bin").mkdir()
    (folder / "bin" / "npm").write_text(f"#!/bin/sh\nPATH={os.defpath}\n{script}\n")
    (folder / "bin" / "npm").chmod(0o755)


def test_package_is_fetched_once(package, tmp_path):
    add_npm(tmp_path, f'echo "$@" >> {tmp_path}/calls; cp {package} "$5/{FILE}"')
    for _ in range(2):
        found = read_runtime()
        assert [found.script, found.loader, found.program] == [*MEMBERS.values()]
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith(f"pack {PACKAGE} --silent --pack-destination ")


def test_broken_copy_in_the_cache_is_fetched_again(package, tmp_path):
    add_npm(tmp_path, f'cp {package} "$5/{FILE}"')
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / FILE).write_bytes(b"half of it")
    assert read_runtime().program == b"program"


def test_given_file_needs_no_npm(package):
    assert read_runtime(package).loader == b"loader"


def test_without_npm_one_line_says_what_to_do(package):
    with pytest.raises(UnsupportedError, match=r"no npm\. Install it: pip .*--runtime") as e:
        read_runtime()
    assert "\n" not in str(e.value)


def test_npm_that_fails_is_quoted(package, tmp_path):
    add_npm(tmp_path, "echo 'no network' >&2; exit 1")
    with pytest.raises(UnsupportedError, match=f"npm got no {PACKAGE}: no network.*--runtime"):
        read_runtime()


def test_other_packages_are_refused(package, tmp_path):
    other = tmp_path / "other.tgz"
    other.write_bytes(b"another one")
    with pytest.raises(InputError, match=r"other\.tgz is not .*: its checksum differs"):
        read_runtime(other)
    with pytest.raises(InputError, match=r"--runtime .*none\.tgz is no file"):
        read_runtime(tmp_path / "none.tgz")
