"""The version: that of the torch release this package is for."""

__version__ = "2.13.0"
