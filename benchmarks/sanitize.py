"""One small call of every kernel, forward and backward, for NVIDIA's compute-sanitizer.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1   # every tensor its own allocation, ends included
    compute-sanitizer --tool memcheck python benchmarks/sanitize.py
    compute-sanitizer --tool racecheck python benchmarks/sanitize.py

What it said is kept in ``benchmarks/results/h200_sanitizer.txt``.
"""

import torch
import typer

import flashpoint

SHORT = (1, 2, 1, 67, 129, 64)  # B, Hq, Hkv, Lq, Lk, D: the portable kernels
LONG = (1, 2, 1, 259, 387, 64)  # those for Hopper, where there is one
WIDE = (1, 2, 1, 259, 387, 128)
DECODE = (2, 8, 2, 1, 1100, 128)
PACKED = (49, 130, 196, 300, 1100)  # tokens: one kernel a head, portable, for Hopper in three ways
CALLS = {
    "plain": (SHORT, {}),
    "causal": (SHORT, {"causal": True}),
    "window": (SHORT, {"window": (20, 5)}),
    "key lengths": (SHORT, {"key_lengths": [100]}),
    "bias": (SHORT, {"bias": (1, 2, 67, 129)}),
    "float mask": (SHORT, {"mask": (1, 1, 67, 129)}),
    "sigmoid": (SHORT, {"activation": "sigmoid"}),
    "decode": (DECODE, {}),
    "hopper": (LONG, {}),
    "hopper causal": (LONG, {"causal": True}),
    "hopper silu": (LONG, {"activation": "silu"}),
    "hopper wide": (WIDE, {}),
    "hopper wide causal": (WIDE, {"causal": True}),
}


def make(*shape: int) -> torch.Tensor:
    """Random numbers that want a gradient."""
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def main() -> None:
    """Run all calls."""
    torch.manual_seed(0)
    for name, ((batch, heads, kv_heads, num_queries, num_keys, dim), options) in CALLS.items():
        q = make(batch, heads, num_queries, dim)
        k, v = (make(batch, kv_heads, num_keys, dim) for _ in range(2))
        given = {key: make(*value) for key, value in options.items() if key in ("bias", "mask")}
        if "key_lengths" in options:
            given["key_lengths"] = torch.tensor(options["key_lengths"], device="cuda")
        flashpoint.attention(q, k, v, **(options | given)).sum().backward()
        torch.cuda.synchronize()
        typer.echo(name)
    ends = torch.tensor([0, 67, 67, 130], device="cuda", dtype=torch.int32)
    q, k, v = (make(130, heads, 64) for heads in (2, 1, 1))
    flashpoint.attention_varlen(q, k, v, ends, ends, 67, 67, causal=True).sum().backward()
    torch.cuda.synchronize()
    typer.echo("packed sequences")
    for length in PACKED:
        norms = {f"{x}_norm": flashpoint.HeadNorm("layer", gain=make(64)) for x in "qk"}
        flashpoint.attention_qkvpacked(make(2, length, 3, 2, 64), **norms).sum().backward()
        torch.cuda.synchronize()
        typer.echo(f"packed q, k and v, {length} tokens, normed")


if __name__ == "__main__":
    main()
