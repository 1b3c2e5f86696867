"""Devices behind one protocol: a step is run eagerly, or recorded once and replayed."""
