"""Decisions of the graph cache: what to key, bucket, capture, keep and evict.

Charter: standard library only. No torch, grpc, redis; no clock and no randomness of its own: times are passed in as seconds,
so that the simulator and the tests drive the very classes that serve.
"""
