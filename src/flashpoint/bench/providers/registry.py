"""All providers by name, and which ones are measured unless others are asked for."""

from collections.abc import Mapping
from functools import partial

import flashpoint
from flashpoint.bench.cases import Case
from flashpoint.bench.providers import flex, plain, sdpa
from flashpoint.bench.providers.provider import Attend, Provider


def _bind_flashpoint(case: Case) -> Attend:
    """The public function, which chooses the fastest implementation that serves."""
    return partial(flashpoint.attention, activation=case.activation, causal=case.causal)


_ALL = (
    Provider(name="flashpoint", function="pointwise", bind=_bind_flashpoint),
    *sdpa.PROVIDERS,
    *flex.PROVIDERS,
    *plain.PROVIDERS,
)

PROVIDERS: Mapping[str, Provider] = {provider.name: provider for provider in _ALL}

USUAL: Mapping[str, tuple[str, ...]] = {
    "cpu": ("flashpoint", "sdpa", "plain"),
    "cuda": ("flashpoint", "sdpa_cudnn", "sdpa_flash"),
}
