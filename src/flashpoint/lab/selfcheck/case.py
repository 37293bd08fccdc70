"""One random call as plain data, and the line that prints it."""

from dataclasses import MISSING, dataclass, fields
from typing import Literal

import torch

Function = Literal["attention", "varlen", "qkvpacked"]

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "bool": torch.bool,
}


@dataclass(frozen=True, slots=True)
class Scored:
    """A bias or a mask that is a tensor: its sizes on [B, Hq, Lq, Lk], 1 where it broadcasts."""

    shape: tuple[int, int, int, int]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}".replace(" ", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Number ``index`` of the cases of a seed.

    Attributes:
        B, Hq, Hkv, Lq, Lk, D, Dv: sizes. Of "varlen" B is the number of sequences, Lq and Lk are
            the lengths that the call states as the longest.
        sequences: queries and keys of each packed sequence; None for other functions.
        norms: kinds of q's and k's norms, "qkvpacked" only. ``gain_dtype``: of their gains; None:
            they have none.
        normalize, floor, return_sums: as for the functions. A call that gives the rows' sums has
            a gradient for them, too.
        values: what is drawn, a key of ``values.KINDS``.
        layouts: of q (or qkv), k, v, do and tensors beside them, for the first call and for the
            second, which has the same shapes and other numbers: it may be a replay of the first.
    """

    seed: int
    index: int
    impl: str
    function: Function
    dtype: str
    B: int
    Hq: int
    Hkv: int
    Lq: int
    Lk: int
    D: int
    Dv: int
    sequences: tuple[tuple[int, int], ...] | None = None
    activation: str = "relu"
    normalize: Literal["length", "sum"] = "length"
    floor: float = 1e-3
    return_sums: bool = False
    alpha: float = 1.0
    length: str | float = "visible"
    scale: float | None = None
    bias: float | Scored | None = None
    mask: Scored | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    key_lengths: tuple[int, ...] | None = None
    norms: tuple[str | None, str | None] = (None, None)
    gain_dtype: str | None = None
    values: str = "normal"
    layouts: tuple[tuple[str, ...], tuple[str, ...]] = (("dense",) * 5, ("dense",) * 5)

    def __str__(self) -> str:
        """One line: where, what, the shapes, and every option that is not the default."""
        sizes = f"B={self.B} H={self.Hq}/{self.Hkv} L={self.Lq}:{self.Lk} D={self.D}:{self.Dv}"
        words = [f"case {self.index}: {self.impl} {self.function} {self.dtype} {sizes}"]
        for name in _OPTIONS:
            value = getattr(self, name)
            if value != _OPTIONS[name]:
                words.append(f"{name}={value}".replace(" ", ""))
        first, second = ("/".join(layout) for layout in self.layouts)
        words.append(f"layouts={first}" + (f" then {second}" if first != second else ""))
        return " ".join(words)


_OPTIONS = {
    field.name: field.default
    for field in fields(Case)
    if field.default is not MISSING and field.name != "layouts"
}
