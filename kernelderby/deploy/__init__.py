"""Brings winners into servers: data that says which solution runs at which shape, and packages with that data.

`runtime/` is the code of such a package. It is copied unchanged, so it imports no other room.
"""
