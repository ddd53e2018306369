"""Distributed training: replica processes and threads, process groups, sharding, data loading, multi-host launch."""
