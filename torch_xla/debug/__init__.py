"""Seeing what the device does."""
