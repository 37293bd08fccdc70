"""Tiny foreign models whose attention matters, and what they compute."""

import torch

SOFTMAX = {"softmax": "softmax", "exp": "exp/sum"}  # both are softmax


@torch.no_grad()
def stir(model, seed=0):
    """The same model with weights under which tokens differ and attention is uneven."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        is_factor = weight.dim() == 1 and bool((weight == 1).all())  # of a norm
        weight.normal_(std=0.3 if weight.dim() > 1 else 0.1, generator=generator)
        weight.add_(float(is_factor))
    return model.eval()


def gradients(model, compute):
    """The output, and the gradient of every parameter that has one."""
    model.zero_grad()
    output = compute(model)
    output.square().sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return output.detach(), found


def assert_same(model, other, compute, tolerance=1e-5):
    """Outputs and all gradients, relative to the largest values."""
    (expected, gradient), (got, other_gradient) = (gradients(x, compute) for x in (model, other))
    close(got, expected, tolerance)
    assert gradient.keys() == other_gradient.keys()
    largest = max(x.abs().max().item() for x in gradient.values())
    for name in gradient:  # what is 0 but for rounding is small beside others alone
        close(other_gradient[name], gradient[name], tolerance, 0.01 * largest)


def close(got, expected, tolerance, least=1e-6):
    scale = max(expected.abs().max().item(), least)
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance * scale)
