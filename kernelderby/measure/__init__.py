"""Running solutions: the only part of the package that imports torch, triton and flashinfer.

The process that the user starts is the judge's: it makes inputs, references and rows, and imports torch only when there
is something to judge. A solution's code runs only in worker processes.
"""

import atexit
import gc

# When a process ends, Python searches all objects for circles, which takes half a second with torch's objects.
atexit.register(gc.freeze)
