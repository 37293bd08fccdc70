"""``tools/mutants.py`` on a tiny repository: faults are planted in a copy, caught or not."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "mutants.py"
SOURCE = "def add(a, b):\n    return a + b\n\n\ndef double(a):\n    return a * 2\n"
TEST = "from flashpoint.sums import add\n\n\ndef test_sum():\n    assert add(2, 2) == 4\n"


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants", SCRIPT)
    module = sys.modules["mutants"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


@pytest.fixture
def tree(tmp_path):
    """A repository with one function that is tested and one that is not."""
    files = {
        "src/flashpoint/__init__.py": "",
        "src/flashpoint/sums.py": SOURCE,
        "tests/test_sums.py": TEST,
        "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['slow: not in make test']\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def make(mutants):
    """A mutant whose name and tests do not matter."""

    def make(file, find, put, tests=("test_sums.py",)):
        return mutants.Mutant("some", file, find, put, tests)

    return make


@pytest.mark.slow
def test_fault_that_a_test_sees_is_caught(mutants, tree, make):
    verdict = mutants.run(make("sums.py", "a + b", "a - b"), tree)
    assert verdict.caught_by == "tests/test_sums.py::test_sum"
    assert (tree / "src/flashpoint/sums.py").read_text() == SOURCE


@pytest.mark.slow
def test_fault_that_no_test_sees_survives(mutants, tree, make):
    verdict = mutants.run(make("sums.py", "a * 2", "a * 3"), tree)
    assert verdict.caught_by == ""
    assert "SURVIVED" in mutants.show(verdict)


@pytest.mark.slow
def test_slow_tests_count_only_where_they_are_asked_for(mutants, tree, make):
    slow = TEST.replace("def test_sum", "@pytest.mark.slow\ndef test_sum")
    other = "import pytest\n" + slow + "\n\ndef test_other():\n    pass\n"
    (tree / "tests/test_sums.py").write_text(other)
    fault = make("sums.py", "a + b", "a - b")
    assert not mutants.run(fault, tree).caught_by
    assert mutants.run(fault, tree, with_slow=True).caught_by


def test_text_and_tests_that_moved_are_found(mutants, tree, make):
    moved = make("gone/old.py", "a + b", "a - b", tests=("gone/test_sums.py::test_sum",))
    assert mutants.locate(tree, moved) == tree / "src/flashpoint/sums.py"
    assert mutants.find_test(tree, moved.tests[0]) == "tests/test_sums.py::test_sum"
    verdict = mutants.Verdict(moved, "test_sum", "src/flashpoint/sums.py")
    assert mutants.show(verdict).endswith("test_sum  (in src/flashpoint/sums.py)")


@pytest.mark.parametrize(("find", "count"), [("return", 2), ("a ** b", 0)])
def test_text_that_is_not_there_once_is_an_error(mutants, tree, make, find, count):
    with pytest.raises(mutants.MutantError, match=f"occurs {count} times"):
        mutants.run(make("sums.py", find, ""), tree)


@pytest.mark.slow
def test_fault_that_keeps_tests_from_running_is_not_caught(mutants, tree, make):
    with pytest.raises(mutants.MutantError, match="did not run"):
        mutants.run(make("sums.py", "def add(a, b):", "def add(a, b:"), tree)


def test_every_mutant_of_this_repository_can_be_planted(mutants):
    root = SCRIPT.parents[1]
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS) >= 20
    for mutant in mutants.MUTANTS:
        assert mutants.locate(root, mutant).is_file()
        assert all(mutants.find_test(root, test) for test in mutant.tests)
