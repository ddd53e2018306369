"""Ahead-of-time compilation for unavailable accelerators, and analysis of the compiled programs."""
