"""Names that libraries import from upstream's internals."""
