"""The operator in the layout of Hugging Face's ``kernels`` package: ``make hub-kernel``."""
