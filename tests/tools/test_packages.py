"""Packages that were changed on purpose: one line each, never endless."""

import os

import pytest
from lab.data.test_hostile_shards import set_size, whole_tar
from limits import limited

from data_preparation.packages import read_package
from flashpoint.errors import InputError


@pytest.mark.parametrize("field", [b"-1000", b"\xff" * 12], ids=repr)
def test_sizes_that_cannot_be_end_the_reading_of_a_package(tmp_path, field):
    content = bytearray(whole_tar(tmp_path))
    set_size(content, 0, field)
    (tmp_path / "x.tar").write_bytes(content)
    with limited(), pytest.raises(InputError, match="cannot be read as a package"):
        read_package(tmp_path / "x.tar", lambda name: True)


@pytest.mark.parametrize("size", [b"-60", b"-120", b"-1"])
def test_debian_package_that_leads_back_is_one_line(tmp_path, size):
    member = b"control.tar/".ljust(48) + size.ljust(10) + b"`\n"
    (tmp_path / "x.deb").write_bytes(b"!<arch>\n" + member * 3)
    with limited(), pytest.raises(InputError, match="cannot be read as a package: a member of"):
        read_package(tmp_path / "x.deb", lambda name: True)


def test_package_that_is_a_fifo_is_one_line(tmp_path):
    os.mkfifo(tmp_path / "x.tgz")
    with limited(), pytest.raises(InputError, match="is no plain file"):
        read_package(tmp_path / "x.tgz", lambda name: True)
