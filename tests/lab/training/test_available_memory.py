"""How much memory there is, by the files of Linux."""

import pytest
import torch

from flashpoint.lab.training import available_memory as module
from flashpoint.lab.training.available_memory import available_memory

GB = 10**9


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(str(content))


def limits(tmp_path, groups):
    file = tmp_path / "cgroup"
    file.write_text(groups)
    return list(module._containers(file, tmp_path / "sys"))


def test_available_memory_of_the_machine_is_read(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable:   700 kB\nSwapFree: 5 kB\n")
    assert module._machine(tmp_path / "meminfo") == 700 * 1024


def test_machine_without_that_file_has_what_is_built_in(tmp_path):
    assert module._machine(tmp_path / "missing") > 2**20


def test_limits_of_version_two_count_up_to_the_root(tmp_path):
    top = tmp_path / "sys"
    write(top / "a/b", memory__max=8 * GB, memory__current=3 * GB)
    write(top / "a", memory__max=6 * GB, memory__current=5 * GB)
    write(top / "a", memory__stat=f"anon 1\ninactive_file {2 * GB}\n")
    write(top, memory__max="max", memory__current=9 * GB)
    assert limits(tmp_path, "0::/a/b\n") == [5 * GB, 3 * GB]


def test_limits_of_version_one_count(tmp_path):
    folder = tmp_path / "sys" / "memory" / "job"
    write(folder, memory__limit_in_bytes=4 * GB, memory__usage_in_bytes=3 * GB)
    write(folder, memory__stat=f"total_inactive_file {GB}\n")
    write(folder.parent, memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=9 * GB)
    groups = "12:cpu,cpuacct:/job\n4:memory:/job\n1:name=systemd:/job\n"
    assert limits(tmp_path, groups) == [2 * GB]


@pytest.mark.parametrize("groups", ["", "0::/\n", "0::/not/there\n"])
def test_without_limits_there_are_none(tmp_path, groups):
    assert limits(tmp_path, groups) == []


def test_smallest_limit_counts_and_processes_share_it(monkeypatch):
    monkeypatch.setattr(module, "_machine", lambda: 9 * GB)
    monkeypatch.setattr(module, "_containers", lambda: iter([7 * GB, 4 * GB]))
    assert available_memory(torch.device("cpu")) == 4 * GB
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert available_memory(torch.device("cpu")) == GB


def test_unknown_system_has_no_number(monkeypatch):
    monkeypatch.setattr(module, "_machine", lambda: None)
    monkeypatch.setattr(module, "_containers", lambda: iter(()))
    assert available_memory(torch.device("cpu")) is None
