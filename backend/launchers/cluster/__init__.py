"""Workers on the machines of a Ray cluster.

`launcher` (this process) -> `client` -> pipe -> `bridge` (the ray environment's interpreter) -> Ray -> `keeper` (an
actor on the node) -> the worker. Ray places; the channel's files come and go through it, by `follower`.
"""
