"""What is served: a model's spec, its code and weights, and how both are found."""
