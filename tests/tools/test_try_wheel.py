"""The trial of a wheel says what failed, and where nothing can be tried."""

import pytest

from try_wheel import main


@pytest.mark.parametrize("arguments", [[], ["dist"], ["a.whl", "b.whl"]])
def test_other_arguments_than_a_wheel_are_one_line(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err == "usage: python tools/try_wheel.py FILE.whl\n"


@pytest.mark.slow
def test_wheel_that_cannot_be_installed_is_named(tmp_path, capsys):
    assert main([str(tmp_path / "none.whl")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: 'python -m pip install ")
    assert "none.whl" in said
