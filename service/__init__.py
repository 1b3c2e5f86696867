"""The graphcache worker: carries out what `cachepolicy` decides."""
