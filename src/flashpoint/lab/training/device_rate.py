"""The device's rate at matrix products, of which a run uses a share."""

import torch

_SIZE = 8192
_PRODUCTS = 20


def matrix_rate(device: torch.device, precision: str) -> float | None:
    """FLOP/s of large products on a GPU, measured in a fraction of a second; None on the CPU."""
    if device.type != "cuda":
        return None
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(_SIZE, _SIZE, device=device, dtype=dtype) for _ in range(2))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.mm(a, b)
    begin.record()
    for _ in range(_PRODUCTS):
        torch.mm(a, b)
    end.record()
    end.synchronize()
    torch.cuda.reset_peak_memory_stats(device)  # the run's own peak is of interest
    return _PRODUCTS * 2.0 * _SIZE**3 / (begin.elapsed_time(end) / 1e3)
