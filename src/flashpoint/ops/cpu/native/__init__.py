"""A kernel in C++ for fp32, compiled on first use where a compiler is there.

PyTorch's products end with a barrier each: a thread that the system holds up stops all others at
every tile. The kernel has one parallel region a call, in which threads take pieces of work.
"""
