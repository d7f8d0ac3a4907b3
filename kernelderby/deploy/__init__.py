"""Winners into servers: which solution runs at which shape, as data, and the packages that hold it.

`runtime/` is what such a package runs. It is copied there as it stands, so it imports nothing of ours.
"""
