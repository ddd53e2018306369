"""Compiled programs on disk: cache keys, folder layout, eviction, prefetch."""
