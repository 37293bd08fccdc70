"""The results of a case's call, and what of them two large parts make that nearly cancel.

Where rows are divided by their sums, a weight's gradient is f_i (do_i . v_j - do_i . o_i). Of a
query that sees one key it is nothing, and plain PyTorch, which has its numbers at hand, may find
exactly that. Implementations keep o_i, rounded to its dtype as flash attention does, and make the
scores again: what they round is as large as the second part by itself.
"""

from dataclasses import replace

import torch
from torch import Tensor

from flashpoint.lab.selfcheck.case import Case
from flashpoint.lab.selfcheck.values import Values, call_function, inputs_of, options_of

RESULTS = ("o", "sums")


def evaluate(case: Case, tensors: Values, impl: str) -> dict[str, Tensor]:
    """The output o, the sums if the case has them, and every floating tensor's gradient."""
    tensors = {
        name: x.detach().requires_grad_(x.is_floating_point()) for name, x in tensors.items()
    }
    given = [tensors[name].detach() for name in ("do", "dsums") if name in tensors]
    tensors = inputs_of(tensors)
    leaves = {name: x for name, x in tensors.items() if x.requires_grad}
    made = call_function(case, tensors, options_of(case, given[0].device) | {"impl": impl})
    made = made if case.return_sums else (made,)
    grads = torch.autograd.grad(made, list(leaves.values()), given)
    named = dict(zip(RESULTS, (x.detach() for x in made), strict=False))
    return named | {f"d{n}": g for n, g in zip(leaves, grads, strict=True)}


def attend(case: Case, values: Values) -> tuple[Tensor, Tensor]:
    """o and the rows' sums by the definition."""
    options = options_of(case, values["do"].device) | {"return_sums": True, "impl": "reference"}
    with torch.no_grad():
        return call_function(case, inputs_of(values), options)


def evaluate_parts(case: Case, values: Values, exact: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a division by sums takes off the gradients, which may be nearly all of them.

    Args:
        case: the case.
        values: its numbers in fp64.
        exact: its results in fp64.
    """
    if case.normalize == "length":
        return {}
    given = _rows_first(case, (values["do"] * exact["o"]).sum(-1)) * _over_sums(case, values)
    rows = values | {"do": torch.zeros_like(values["do"]), "dsums": given}
    parts = evaluate(replace(case, return_sums=True), rows, "reference")
    return {name: x for name, x in parts.items() if name not in RESULTS}


def _over_sums(case: Case, values: Values) -> Tensor:
    """1 / (z_i + floor n_i): what values of 1 come to, without their weights."""
    values = dict(values)
    if "qkv" in values:
        values["qkv"] = values["qkv"].clone()
        values["qkv"][:, :, 2] = 1.0
    else:
        values["v"] = torch.ones_like(values["v"])
    shares, sums = attend(case, values)
    return _rows_first(case, shares[..., 0]) / sums.masked_fill(sums == 0, 1)


def _rows_first(case: Case, x: Tensor) -> Tensor:
    """A number of each row as the sums lie: heads before queries."""
    return x if case.function == "attention" else x.transpose(-1, -2)
