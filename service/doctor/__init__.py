"""`graphcache doctor`: why a step can't be captured, operation by operation, and why a right graph is not faster."""
