"""The package version, equal to the torch release that the package targets."""

__version__ = "2.13.0"
