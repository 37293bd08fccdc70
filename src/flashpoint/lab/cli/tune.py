"""``flashpoint tune``: measure the tiles of the GPU's kernels and store the fastest."""

from typing import TYPE_CHECKING, Annotated

import typer

from flashpoint.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.table import Table
    from torch import Tensor

    from flashpoint.lab.bench.cases import Case
    from flashpoint.ops.gpu.call import Call
    from flashpoint.ops.gpu.tiles.autotune import Tuned
    from flashpoint.ops.gpu.tiles.table import Kind, Tiles

SHAPES = ("8,12,197,64", "4,16,2048,64", "2,16,4096,128", "1,32/8,1:32768,128")
LEGEND = "Tiles: queries x keys, w warps, s stages; decode: p programs a multiprocessor."
HOPPER = "*: kernels for Hopper serve calls that hide and add nothing, these tiles the others."


def tune(
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="B,H,L,D",
            help="Tune for this shape; may be repeated. H/K: K heads of k and v; Q:L: Q queries.",
            show_default="; ".join(SHAPES),
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Any of bf16,fp16,fp32.")] = "bf16",
    causal: Annotated[bool, typer.Option("--causal", help="Hide later keys.")] = False,
    activation: Annotated[str, typer.Option(help="What stands in softmax's place.")] = "relu",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the candidates, measure nothing.")
    ] = False,
) -> None:
    """Measure tiles of the GPU's kernels on this machine; later calls use the fastest."""
    from rich.console import Console

    from flashpoint.lab.bench.cases import Case, parse_dtypes, parse_shape
    from flashpoint.ops.activation import find_activation

    find_activation(activation)
    cases = [
        Case(
            shape=parse_shape(text),
            dtype=name,
            mode="training",
            activation=activation,
            causal=causal,
            device="cuda",
        )
        for text in shape or SHAPES
        for name in parse_dtypes(dtype)
    ]
    _require_kernels(dry_run)
    kinds = {case: _kinds(case) for case in cases}
    if dry_run:
        Console().print(_draw_candidates(kinds))
        return
    from flashpoint.ops.gpu.tiles import stored as tile_store

    Console().print(_draw_results(_measure(cases), tile_store.path()))


def _require_kernels(dry_run: bool) -> None:
    """Refuse a machine that cannot run them; candidates need no GPU."""
    import torch

    from flashpoint.ops.implementations import HAS_TRITON

    if not HAS_TRITON:
        raise UnsupportedError("tune needs the package triton. Install it: pip install triton.")
    if not (dry_run or torch.cuda.is_available()):
        raise UnsupportedError(
            f"tune needs an NVIDIA GPU: torch {torch.__version__} sees none. "
            "Pass --dry-run to see the candidates, or see `flashpoint doctor`."
        )


def _call_of(case: "Case", q: "Tensor", k: "Tensor", v: "Tensor") -> "Call":
    """A case as the kernels take it."""
    from flashpoint.ops.activation import find_activation
    from flashpoint.ops.gpu.call import Call
    from flashpoint.ops.spec import Terms

    key = find_activation(case.activation).key
    terms = Terms(key, right=0 if case.causal else None)
    return Call.dense(q, k, v, None, None, None, terms)


def _launch(case: "Case") -> None:
    """Run the kernels that have tiles, also where a faster one would serve the case."""
    from flashpoint.lab.bench.calls import make_inputs
    from flashpoint.ops.gpu.attend import gradient_arguments
    from flashpoint.ops.gpu.dispatch import DECODE
    from flashpoint.ops.gpu.portable import backward, decode, forward
    from flashpoint.ops.gpu.portable.blocks import Layout
    from flashpoint.ops.gpu.replay import Recorder

    inputs = make_inputs(case)
    q, k, v = (x.detach() for x in inputs.leaves)
    call, recorder = _call_of(case, q, k, v), Recorder(q)
    o = inputs.do.new_empty(inputs.do.shape)
    if DECODE.why_not(call, None) is None:
        decode.launch(call, recorder, o, Layout.HEADS_FIRST)
        return
    forward.launch(call, recorder, o, Layout.HEADS_FIRST)
    grads = [x.new_empty(x.shape) for x in (q, k, v)]
    rest = (inputs.do, grads, gradient_arguments(call), Layout.HEADS_FIRST)
    backward.launch_backward(call, recorder, *rest)


def _measure(cases: "Sequence[Case]") -> "list[tuple[Case, Tuned]]":
    """Tune every case and show on stderr what is measured."""
    from rich.console import Console

    from flashpoint.ops.gpu.tiles.autotune import session

    console, results = Console(stderr=True), []
    with console.status("") as status:
        for case in cases:

            def show(kind: "Kind", tiles: "Tiles", case: "Case" = case) -> None:
                status.update(
                    f"{kind.kernel} of {case.shape} {case.dtype}: {tiles.describe(kind.kernel)}"
                )

            with session(on_candidate=show) as tuning:
                _launch(case)
            results += [(case, tuned) for tuned in tuning.found]
    return results


def _kinds(case: "Case") -> "list[Kind]":
    """The kinds of call that tuning a case measures, if kernels serve it."""
    import torch

    from flashpoint.lab.bench.calls import TORCH_DTYPES
    from flashpoint.ops.gpu.dispatch import DECODE
    from flashpoint.ops.gpu.tiles.table import Kind
    from flashpoint.ops.implementations import choose

    q, k = (
        torch.empty(sizes, dtype=TORCH_DTYPES[case.dtype], device="meta")
        for sizes in (case.shape.q_sizes, case.shape.kv_sizes)
    )
    call = _call_of(case, q, k, k)
    choose("triton", q, k, call.terms.activation)
    names = ("decode",) if DECODE.why_not(call, None) is None else ("forward", "dkdv", "dq")
    return [Kind.of(name, call) for name in names]


def _draw_candidates(kinds: "dict[Case, list[Kind]]") -> "Table":
    """What would be measured, on this GPU or else on one like a Hopper."""
    import torch
    from rich.table import Table

    from flashpoint.ops.gpu.device import gpu_of
    from flashpoint.ops.gpu.tiles.autotune import candidates

    gpu = gpu_of(torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu"))
    name = gpu.name if torch.cuda.is_available() else "a Hopper, as no GPU is here"
    columns = ("kernel", "shape", "dtype", "tiles in use", "others")
    table = Table(*columns, title_justify="left", caption_justify="left")
    table.title, table.caption = f"Candidates for {name}", LEGEND
    for case, members in kinds.items():
        for kind in members:
            used, *others = (tiles.describe(kind.kernel) for tiles in candidates(kind, gpu))
            table.add_row(kind.kernel, str(case.shape), case.dtype, used, "\n".join(others))
    return table


def _has_hopper_kernels(case: "Case") -> bool:
    """True where the call itself would not use the tiles."""
    import torch

    from flashpoint.lab.bench.calls import TORCH_DTYPES
    from flashpoint.ops.gpu import dispatch

    q, k = (
        torch.empty(sizes, dtype=TORCH_DTYPES[case.dtype], device=case.device)
        for sizes in (case.shape.q_sizes, case.shape.kv_sizes)
    )
    call = _call_of(case, q, k, k)
    return dispatch.choose(call) is dispatch.HOPPER


def _draw_results(results: "Sequence[tuple[Case, Tuned]]", stored: "Path") -> "Table":
    """Tiles and times before and after, and where the tiles are now."""
    from rich.table import Table

    columns = ("kernel", "shape", "dtype", "tiles before", "after", "us before", "after", "gain")
    table = Table(*columns, title="Tuned tiles", title_justify="left", caption_justify="left")
    served = {case: _has_hopper_kernels(case) for case, _ in results}
    note = f"\n{HOPPER}" if any(served.values()) else ""
    table.caption = f"{LEGEND}{note}\nStored in {stored}"
    for case, tuned in results:
        gain = tuned.before_ms / tuned.after_ms - 1.0
        is_same = tuned.before == tuned.after
        table.add_row(
            tuned.kind.kernel + "*" * served[case],
            str(case.shape),
            case.dtype,
            tuned.before.describe(tuned.kind.kernel),
            "the same" if is_same else tuned.after.describe(tuned.kind.kernel),
            f"{1e3 * tuned.before_ms:.1f}",
            f"{1e3 * tuned.after_ms:.1f}",
            "" if is_same else f"{gain:+.0%}",
        )
    return table
