"""Where PyTorch has the operators: ``torch.ops.flashpoint``. The kernel for the Hub has its own."""

NAMESPACE = "flashpoint"
