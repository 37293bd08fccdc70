"""Measurements of the operator beside its peers: time, memory and error, as plain data.

Read in this order: ``cases`` (what is measured), ``suites`` (named sets and what is promised for
them), ``providers`` (who computes it), ``plan`` (a request becomes items), ``calls`` (what is
called, and on which tensors), ``timing``, ``cuda_timing``, ``memory`` and ``accuracy`` (how),
``runner`` (all of it for a plan), ``result``, ``result_file``, ``check`` and ``plot`` (what comes
out). Tables for the terminal are ``cli.bench_view``.
"""
