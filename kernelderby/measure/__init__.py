"""Running solutions: the only part of the package that imports torch, triton and flashinfer.

The process that a person starts is the judge's: it makes inputs, references and rows, and imports torch once there is
something to judge. A solution's code runs in worker processes alone.
"""

import atexit
import gc

# At a process's end Python looks through all objects for circles; of those that torch makes it takes half a second.
atexit.register(gc.freeze)
