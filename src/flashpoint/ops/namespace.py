"""Where PyTorch has the operators; the kernel for the Hub has a name of its own."""

NAMESPACE = "flashpoint"
