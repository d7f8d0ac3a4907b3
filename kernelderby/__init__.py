"""KernelDerby: which kernel is fastest on this GPU for these shapes, where its time goes, how far it is from light."""

__version__ = "0.1.0"
