"""All studies by name, in the order in which they are listed."""

from collections.abc import Mapping

from flashpoint.lab.study.plan import Study
from flashpoint.lab.study.studies import (
    adapt,
    adapt_language,
    document_length,
    gate,
    learned_length,
    length_power,
    longer_than_trained,
    memory_rates,
    memory_slots,
    qk_norm,
    relu_attention,
    retrieval,
    scaling,
    sentences,
    sharpness,
    speed,
    starts,
    variance,
)

_MODULES = (
    *(scaling, length_power, qk_norm, gate, memory_slots, memory_rates, relu_attention),
    *(sentences, document_length, variance, learned_length, longer_than_trained, retrieval),
    *(sharpness, starts, adapt, adapt_language, speed),
)

STUDIES: Mapping[str, Study] = {module.STUDY.name: module.STUDY for module in _MODULES}
