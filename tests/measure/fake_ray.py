"""A Ray in this process whose hosts do as told."""

from types import SimpleNamespace

import msgspec

from kernelderby.measure.cluster.messages import TaskAsked

NEVER = object()


class Reference:
    def __init__(self, found):
        self.found = found


class FakeRay:
    """nodes: name -> cores. Each answer of a host is what answer(node, asked) gives: bytes, an error or NEVER."""

    def __init__(self, answer, **cores):
        self.cores, self.answer = dict(cores), answer
        self.killed, self.asked = [], []

    def put(self, data):
        return data

    def nodes(self):
        return [{"NodeID": name, "Alive": True, "Resources": {"CPU": n, "GPU": n}} for name, n in self.cores.items()]

    def remote(self, _):
        def options(scheduling_strategy, **_):
            return SimpleNamespace(remote=lambda *_: self.host(scheduling_strategy.node_id))

        return SimpleNamespace(options=options)

    def host(self, node):
        def ask(message, seconds):
            asked = msgspec.json.decode(message, type=TaskAsked) if message else None
            if asked:
                self.asked.append((node, asked))
            return Reference(self.answer(node, asked))

        call = SimpleNamespace(remote=lambda: Reference(b""))
        return SimpleNamespace(ask=SimpleNamespace(remote=ask), close=call, node=node)

    def wait(self, references, **_):
        return [each for each in references if each.found is not NEVER][:1], []

    def get(self, reference):
        if isinstance(reference.found, Exception):
            raise reference.found
        return reference.found if isinstance(reference.found, bytes) else msgspec.json.encode(reference.found)

    def kill(self, actor):
        self.killed.append(actor.node)
