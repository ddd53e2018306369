"""Utilities for scripts: DLPack, activation checkpointing, one-file-per-tensor serialization, queues, timing."""
