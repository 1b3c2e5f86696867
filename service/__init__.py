"""The graphcache worker: carries out what `cachepolicy` decides."""

__version__ = "0.1.0"
