"""Compiles recorded graphs: placement, input and output shardings, XLA options, the caches of compiled programs."""
