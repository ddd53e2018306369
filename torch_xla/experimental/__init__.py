"""Names that upstream calls experimental and libraries import."""
