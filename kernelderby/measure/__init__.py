"""Running solutions: the only part of the package that imports torch, triton and flashinfer.

The process that a person starts (runner, checks, doctor) imports none of them; it talks to worker processes, one a
solution, which do (worker, build, inputs, correctness, timing, environment.describe).
"""
