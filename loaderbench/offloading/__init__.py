"""Large models by offloading: which of a step's tensors live in host memory, and the engine that moves them."""
