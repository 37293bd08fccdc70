"""One call as data: tensors seen as [B, H, L, D], numbers, and facts to compile in.

"packed" is qkv, q, k and v in one tensor; "varlen" is sequences that follow one another.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashpoint.ops.activation import STEEP, registered
from flashpoint.ops.gpu.activations import in_kernels, is_builtin
from flashpoint.ops.gpu.device import gpu_of
from flashpoint.ops.gpu.normalizer import Normalizer, broadcast_strides
from flashpoint.ops.gpu.reading import block_of, describe_rows, is_regular, loads_wide
from flashpoint.ops.gpu.replay import Role
from flashpoint.ops.implementations import INTERPRETED
from flashpoint.ops.normalizer import normalizer
from flashpoint.ops.spec import NormTerms, Terms

MOST_KEYS_BY_POINTERS = 256  # a descriptor costs the host 25 us a launch, more than it saves here
FARTHEST = 2**30  # a window beyond any sequence, and within 32 bits with a position added
LARGEST_LIFT = 16.0
SMALLEST_SHRINK = -8  # exponent of two by which fp16 weights are kept away from overflow


class QKNorm(NamedTuple):
    """Norms that kernels have to take q and k through; gains are [D], dense, or None."""

    q_gain: Tensor | None = None
    k_gain: Tensor | None = None
    terms: NormTerms = NormTerms()

    @property
    def kinds(self) -> dict[str, str]:
        """By name of the tensor; "none" where there is no norm."""
        return {"q": self.terms.q_kind, "k": self.terms.k_kind}

    @property
    def is_none(self) -> bool:
        """True where q and k are taken as they are."""
        return self.terms.q_kind == self.terms.k_kind == "none"

    def of_keys(self) -> "QKNorm":
        """That of k alone."""
        return QKNorm(None, self.k_gain, self.terms._replace(q_kind="none"))

    def of_queries(self) -> "QKNorm":
        """That of q alone."""
        return QKNorm(self.q_gain, None, self.terms._replace(k_kind="none"))

    def arguments(self) -> dict[str, Any]:
        """What kernels take for it, by name."""
        return {
            "q_gain": self.q_gain, "k_gain": self.k_gain,
            "q_eps": self.terms.q_eps, "k_eps": self.terms.k_eps,
            "Q_NORM": self.terms.q_kind, "K_NORM": self.terms.k_kind,
        }


class Call(NamedTuple):
    """The tensors and numbers of one call.

    Attributes:
        q, k, v: [B, H, L, D] in any strides; sequences of a varlen call are rows of one sample.
        mask: bytes, if it was one of booleans.
        lengths: [B] numbers of existing keys, or None.
        cu_q, cu_k: where sequences of a varlen call begin, or None.
        num_samples: how many sequences there are.
        num_queries, num_keys: of the longest sequence.
        scale, moved: the factor on scores, and on weights: the scale stands behind h where h
            allows it.
        qk_norm: norms of q and k that are still to come.
        q_role, k_role: what q and k are to the recorded call: themselves, or q-hat and k-hat.
        has_sums: whether rows' sums of weights are wanted or divide the result.
        bias_has_gradient: whether backward is asked for the bias's.
        totals: fp32 sums that the result is added to, [B, H, Lq, Dv], in backward dq; rows dense,
            or None.
        overwrites: whether they become the result instead.
        mask_words, normalizers: what ``portable/masks.py`` has read from a mask of booleans.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    mask: Tensor | None
    lengths: Tensor | None
    cu_q: Tensor | None
    cu_k: Tensor | None
    num_samples: int
    num_queries: int
    num_keys: int
    terms: Terms
    scale: float
    moved: float
    qk_norm: QKNorm = QKNorm()
    q_role: Role = Role.Q
    k_role: Role = Role.K
    has_sums: bool = False
    bias_has_gradient: bool = False
    totals: Tensor | None = None
    overwrites: bool = False
    mask_words: Tensor | None = None
    normalizers: Tensor | None = None

    @classmethod
    def dense(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        mask: Tensor | None,
        key_lengths: Tensor | None,
        terms: Terms,
    ) -> "Call":
        """Samples of one length, padded perhaps."""
        scale, moved = _split_scale(q, bias, terms)
        return cls(
            q, k, v, bias, mask, key_lengths, None, None,
            q.shape[0], q.shape[2], k.shape[2], terms, scale, moved,
        )

    @classmethod
    def packed(
        cls,
        qkv: Tensor,
        q_gain: Tensor | None,
        k_gain: Tensor | None,
        bias: Tensor | None,
        mask: Tensor | None,
        key_lengths: Tensor | None,
        qk_norm: NormTerms,
        terms: Terms,
    ) -> "Call":
        """Samples of one length in qkv [B, L, 3, H, D], in any strides."""
        q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
        call = cls.dense(q, k, v, bias, mask, key_lengths, terms)
        q_gain = None if qk_norm.q_kind == "none" else q_gain
        k_gain = None if qk_norm.k_kind == "none" else k_gain
        return call._replace(qk_norm=QKNorm(q_gain, k_gain, qk_norm))

    @classmethod
    def varlen(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        mask: Tensor | None,
        cu_q: Tensor,
        cu_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        terms: Terms,
    ) -> "Call":
        """Sequences one after another, [T, H, D]."""
        scale, moved = _split_scale(q, bias, terms)
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        return cls(
            q, k, v, bias, mask, None, cu_q, cu_k,
            cu_q.shape[0] - 1, max_seqlen_q, max_seqlen_k, terms, scale, moved,
        )

    @property
    def is_varlen(self) -> bool:
        """True where sequences follow one another as rows of one sample."""
        return self.cu_q is not None

    @property
    def roles(self) -> dict[str, Role]:
        """What tensors are of which a kernel's name for them does not tell it."""
        q, k = self.q_role, self.k_role
        rows = {"q_rows": q, "k_rows": k, "v_rows": Role.V, "do_rows": Role.DO}
        mask = Role.MASK if self.mask_words is None else Role.MASK_WORDS
        return {"q": q, "k": k, "q_raw": Role.Q, "k_raw": Role.K, "mask": mask} | rows

    def backward_roles(self, do: Role = Role.DO) -> dict[str, Role]:
        """The same in backward, whose factors of rows are made on the way where there are sums."""
        roles = self.roles | {"do": do, "do_rows": do}
        return roles | ({"normalizers": Role.FACTORS} if self.has_sums else {})

    def of_hats(self, hats: dict[Role, Tensor]) -> "Call":
        """The same of q-hat, k-hat or both, [B, L, H, D], with no norm left to come for these."""
        call = self
        if Role.Q_HAT in hats:
            q, left = hats[Role.Q_HAT].transpose(1, 2), call.qk_norm.of_keys()
            call = call._replace(q=q, q_role=Role.Q_HAT, qk_norm=left)
        if Role.K_HAT in hats:
            k, left = hats[Role.K_HAT].transpose(1, 2), call.qk_norm.of_queries()
            call = call._replace(k=k, k_role=Role.K_HAT, qk_norm=left)
        return call

    @property
    def is_empty(self) -> bool:
        """True where there is nothing to add up."""
        sizes = (self.num_samples, self.num_queries, self.num_keys)
        return 0 in sizes or any(x.numel() == 0 for x in (self.q, self.k, self.v))

    @property
    def q_heads(self) -> int:
        """Heads of q."""
        return self.q.shape[1]

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def ends_early(self) -> bool:
        """True where memory goes on behind a sequence's last key."""
        return self.lengths is not None or self.is_varlen

    @property
    def window(self) -> tuple[int | None, int | None]:
        """How far a query sees to the left and to the right, in 32 bits; None is unbounded."""
        left, right = (
            None if n is None else min(n, FARTHEST) for n in (self.terms.left, self.terms.right)
        )
        return left, right

    @property
    def has_many_keys(self) -> bool:
        """True where it pays to prepare how they are read: descriptors, words of a mask."""
        return self.num_keys > MOST_KEYS_BY_POINTERS

    @property
    def is_regular(self) -> bool:
        """True where the copy engine can read q, k and v."""
        return all(map(is_regular, (self.q, self.k, self.v)))

    @property
    def loads_wide(self) -> bool:
        """True where pointers load q, k and v in vectors, which Triton then streams ahead."""
        return all(map(loads_wide, (self.q, self.k, self.v)))

    @property
    def hides_nothing(self) -> bool:
        """True where every query sees every key in memory, but for a mask."""
        window = self.terms.left is not None or self.terms.right is not None
        return not (window or self.ends_early) and self.is_finite_beyond

    @property
    def is_finite_beyond(self) -> bool:
        """True where keys of zeros behind the last have finite weights: those of the bias alone.

        Of a user's h that is not known.
        """
        activation, bias = self.terms.activation, self.terms.bias
        if bias == 0.0 or not is_builtin(activation):
            return is_builtin(activation)
        weight = registered(activation).weights_of(torch.tensor(bias))
        return math.isfinite(weight.item())

    @property
    def ends_in_zeros(self) -> bool:
        """True where keys of zeros behind the last have weights of zero, too."""
        degree = registered(self.terms.activation).degree
        return degree is not None and degree > 0 and self.bias is None and self.terms.bias == 0.0

    @property
    def is_wide(self) -> bool:
        """True where weights may leave fp16's range: those of a steep h, or still to be divided.

        Their products then take the range of fp32.
        """
        steep = self.has_sums or self.terms.activation in STEEP
        return self.q.dtype == torch.float16 and steep

    @property
    def rounds_weights(self) -> torch.dtype | None:
        """What weights and ds are rounded to before anything is made of them; None: they are not.

        Sums of weights and gradients of a bias or a mask are made of them as they are.
        """
        has_scores = self.bias is not None or self.mask is not None
        has_sums = self.has_sums or self.terms.normalize == "sum"
        is_half = self.q.dtype.itemsize == 2
        return self.q.dtype if is_half and not has_sums and not has_scores else None

    @property
    def shrinks_weights(self) -> bool:
        """True where a power of two keeps weights in fp16's range."""
        return self.q.dtype == torch.float16 and not self.is_wide

    def shrinks(self) -> tuple[float, float]:
        """Powers of two that keep fp16 weights, and their gradients ds, in range before the end.

        They stand in for the normalizer and for a scale that moved behind h.
        """
        if not self.shrinks_weights:
            return 1.0, 1.0
        moved, degree = self.moved_exponent()
        power = normalizer(self.num_keys, self.terms.alpha)
        exponent = round(math.log2(power)) if 0.0 < power < math.inf else 0
        exponent = min(max(exponent, SMALLEST_SHRINK), 0)
        return 2.0 ** (exponent + moved), 2.0 ** (moved * (degree - 1) // degree)

    def row_shrinks(self) -> tuple[float, float]:
        """The same for tiles that each query's normalizer has met: what is small by it is lifted.

        Not by much: the normalizer of a query that sees few keys is near 1.
        """
        if not self.shrinks_weights:
            return 1.0, 1.0
        moved, degree = self.moved_exponent()
        power = normalizer(self.num_keys, self.terms.alpha)
        lift = min(1.0 / power, LARGEST_LIFT) if 0.0 < power < math.inf else 1.0
        return lift, lift * 2.0 ** (moved * (degree - 1) // degree - moved)

    def moved_exponent(self) -> tuple[int, int]:
        """log2 of what a scale behind h multiplies weights by, rounded, and h's degree."""
        degree = registered(self.terms.activation).degree
        scale = self.terms.scale_for(self.q.shape[3])
        if degree is None or self.scale == scale:
            return 0, 1
        return round(degree * math.log2(scale)), degree

    def plane_of(self, sums: Tensor | None) -> int:
        """From a row's sum of weights to that of w log w, in numbers; 0 where there is none."""
        return sums.stride(0) if sums is not None and self.terms.logs else 0

    def pointers(self, do: Tensor | None = None) -> dict[str, Any]:
        """q, k, v and do, and their strides."""
        tensors = {"q": self.q, "k": self.k, "v": self.v}
        if do is not None:
            tensors["do"] = do
        return tensors | {f"{name}_strides": x.stride() for name, x in tensors.items()}

    def inputs(self, tiles: dict[str, int], do: Tensor | None = None) -> dict[str, Any]:
        """q, k, v and do as kernels load them: by descriptors, or by pointers and strides."""
        pointers = self.pointers(do)
        pays = self.has_many_keys or not (self.loads_wide or INTERPRETED)
        can = self.is_regular and (do is None or is_regular(do))
        tma = pays and can and gpu_of(self.q.device).has_copy_engine
        if not tma:
            return pointers | {"TMA": False}
        rows = {"q": "BLOCK_M", "do": "BLOCK_M", "k": "BLOCK_N", "v": "BLOCK_N"}
        described = {
            name: describe_rows(pointers[name], tiles[block])
            for name, block in rows.items()
            if name in pointers
        }
        return pointers | described | {"TMA": True}

    def arguments(self) -> dict[str, Any]:
        """What every kernel takes, by name; tensors that depend on tiles are not among it."""
        terms, made = self.terms, Normalizer.of(self)
        mask = self.mask if self.mask_words is None else self.mask_words
        weigh, _ = in_kernels(terms.activation, rounded=self.rounds_weights)
        shrink, shrink_ds = self.shrinks()
        return {
            "bias": self.bias,
            "mask": mask,
            "normalizers": made.values,
            "lengths": self.lengths,
            "cu_q": self.cu_q,
            "cu_k": self.cu_k,
            "bias_strides": broadcast_strides(self.bias),
            "mask_strides": broadcast_strides(mask),
            "normalizer_strides": broadcast_strides(made.values),
            "Hq": self.q_heads,
            "Lq": self.num_queries,
            "Lk": self.num_keys,
            "Tq": self.q.shape[2] if self.is_varlen else None,
            "Tk": self.k.shape[2] if self.is_varlen else None,
            "left": self.window[0],
            "right": self.window[1],
            "scale": self.scale,
            "bias_number": terms.bias,
            "gain": made.gain,
            "alpha": made.alpha,
            "shrink": shrink,
            "shrink_ds": shrink_ds,
            "moved": self.moved,
            "log_moved": math.log(self.moved),
            "WEIGH": weigh,
            "GROUP": self.group,
            "D": self.q.shape[3],
            "DV": self.v.shape[3],
            "HAS_SCALE": self.scale != 1.0,
            "HAS_BIAS_NUMBER": terms.bias != 0.0,
            "MASK": _mask_kind(mask),
            "NORMALIZER": made.word,
            "POWER": made.power,
            "BY_SUM": terms.normalize == "sum",
            "LOGS": terms.logs,
            "SHRINKS": self.shrinks_weights,
            "WIDE": self.is_wide,
            "ENDS_EARLY": self.ends_early,
            "BLOCK_D": block_of(self.q.shape[3]),
            "BLOCK_DV": block_of(self.v.shape[3]),
        } | self.qk_norm.arguments()


def _split_scale(q: Tensor, bias: Tensor | None, terms: Terms) -> tuple[float, float]:
    has_bias = bias is not None or terms.bias != 0.0
    return terms.split_scale(q.shape[-1], has_bias=has_bias)


def _mask_kind(mask: Tensor | None) -> str:
    kinds = {torch.uint8: "bool", torch.int32: "words"}
    return "none" if mask is None else kinds.get(mask.dtype, "float")
