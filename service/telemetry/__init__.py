"""What operators see: metrics and spans."""
