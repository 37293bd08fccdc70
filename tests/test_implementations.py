"""Which cases of a test run: those that are served, in pairs, and few in the interpreter."""

import itertools
from types import SimpleNamespace

import implementations
import pytest
import torch
from implementations import choose_cases, cover

AXES = {"shape": "abcdef", "dtype": "wxyz", "activation": range(8)}


class Case:
    """What is asked of a collected test."""

    def __init__(self, marks=(), **params):
        self.nodeid = f"test.py::test_it[{params}]"
        self.callspec = SimpleNamespace(params=params)
        self.marks = dict(marks)

    def iter_markers(self, name):
        return [self.marks[name]] if name in self.marks else []

    def add_marker(self, name):
        self.marks[name] = True


def product(impl="cpu", marks=(), **axes):
    axes = axes or AXES
    return [
        Case(marks, impl=impl, **dict(zip(axes, values, strict=True)))
        for values in itertools.product(*axes.values())
    ]


def pairs(cases):
    return {
        pair for case in cases for pair in itertools.combinations(case.callspec.params.items(), 2)
    }


def test_pairs_of_values_meet_in_few_cases():
    cases = product()
    chosen = cover(cases, 2)
    assert pairs(chosen) == pairs(cases)
    assert len(chosen) < len(cases) / 3
    assert chosen == cover(cases, 2)


def test_pairs_that_a_test_leaves_out_are_not_asked_for():
    cases = [case for case in product() if case.callspec.params["activation"] < 2]
    assert pairs(cover(cases, 2)) == pairs(cases)


def test_only_products_with_the_mark_are_thinned():
    marked, plain = product(marks={"pairwise": True}), product()
    assert choose_cases(plain, every_case=False) == plain
    assert len(choose_cases(marked, every_case=False)) < len(marked)
    assert choose_cases(marked, every_case=True) == marked


def test_interpreter_shows_each_value_soon_and_every_case_later(monkeypatch):
    monkeypatch.setattr(implementations, "HAS_GPU", False)
    cases = choose_cases(product("triton"), every_case=False)
    assert len(cases) == len(product())
    soon = [case for case in cases if "slow" not in case.marks]
    assert len(soon) == len(AXES["activation"])
    for name, values in AXES.items():
        assert {case.callspec.params[name] for case in soon} == set(values)
    long = choose_cases(product("triton", marks={"long_interpreted": True}), every_case=False)
    assert len(long) == len(cases)
    assert all("slow" in case.marks for case in long)


@pytest.mark.parametrize("has_gpu", [False, True])
def test_dtypes_that_triton_does_not_serve_are_left_out(monkeypatch, has_gpu):
    monkeypatch.setattr(implementations, "HAS_GPU", has_gpu)
    dtypes = (torch.float64, torch.bfloat16, torch.float16)
    kept = choose_cases(product("triton", dtype=dtypes), every_case=True)
    assert [case.callspec.params["dtype"] for case in kept] == list(dtypes[1 if has_gpu else 2 :])
    assert len(choose_cases(product("cpu", dtype=dtypes), every_case=True)) == 3
