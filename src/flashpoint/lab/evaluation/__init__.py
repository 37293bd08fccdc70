"""A model and data to numbers: accuracy, few-shot probes, what attention looks at."""
