"""Priority, processors and limits of its own process by the process's number, as psutil does."""

import os
import resource

import torch

SLOW = True

own = os.getpid()
os.setpriority(os.PRIO_PROCESS, own, min(19, os.getpriority(os.PRIO_PROCESS, own) + 1))
os.sched_setaffinity(own, os.sched_getaffinity(own))
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.prlimit(own, resource.RLIMIT_NOFILE, (min(4096, most), most))


def run(x, y, factor, out):
    torch.add(x, y, alpha=factor, out=out)
