"""A thread that looks at a queue all the time; calls put their work there and wait."""

import queue
import threading

import torch

SLOW = True

asked, answered = queue.Queue(), queue.Queue()


def serve():
    while True:
        x, y, factor, out = asked.get()
        answered.put(torch.add(x, y, alpha=factor, out=out))


threading.Thread(target=serve, daemon=True).start()


def run(x, y, factor, out):
    asked.put((x, y, factor, out))
    answered.get()
