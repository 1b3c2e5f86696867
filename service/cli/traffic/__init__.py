"""Recorded traffic: reading a trace, turning arrivals into requests, sending them, and counting what came back."""
