"""All providers by name, and which ones are measured unless others are asked for."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

import flashpoint
from flashpoint.lab.bench.cases import Case
from flashpoint.lab.bench.providers import fa4, flex, plain, sdpa
from flashpoint.lab.bench.providers.provider import EPS, Attend, Provider


def _bind_flashpoint(case: Case) -> Attend:
    """The public function, which chooses the fastest implementation that serves."""
    return partial(flashpoint.attention, **case.options)


def _bind_packed(case: Case) -> Callable[..., Tensor]:
    """The same on packed q, k and v, with the norms inside."""
    if case.qk_norm == "none":
        return partial(flashpoint.attention_qkvpacked, **case.options)

    def attend(qkv: Tensor, q_gain: Tensor, k_gain: Tensor, **terms: Tensor) -> Tensor:
        options: dict[str, Any] = {**case.options, **terms}
        return flashpoint.attention_qkvpacked(
            qkv,
            q_norm=flashpoint.HeadNorm("layer", q_gain, EPS),
            k_norm=flashpoint.HeadNorm("layer", k_gain, EPS),
            **options,
        )

    return attend


_ALL = (
    Provider(
        name="flashpoint",
        function="pointwise",
        bind=_bind_flashpoint,
        bind_packed=_bind_packed,
    ),
    *sdpa.PROVIDERS,
    *fa4.PROVIDERS,
    *flex.PROVIDERS,
    *plain.PROVIDERS,
)

PROVIDERS: Mapping[str, Provider] = {provider.name: provider for provider in _ALL}

USUAL: Mapping[str, tuple[str, ...]] = {
    "cpu": ("flashpoint", "sdpa", "plain"),
    "cuda": ("flashpoint", "sdpa_cudnn", "sdpa_flash"),
}
