"""Measurements of the operator beside its peers: time, memory and error, as plain data.

Read in this order: ``cases`` (what is measured), ``limits`` and ``suites`` (named sets and what is
promised for them), ``providers`` (who computes it), ``plan`` (a request becomes items), ``inputs``
and ``calls`` (what is called), ``timing``, ``cuda_timing``, ``memory``, ``accuracy`` and
``matrix_rate`` (how), ``runner`` (all of it for a plan), ``result``, ``result_file``, ``check``,
``table`` and ``plot`` (what comes out).
"""
