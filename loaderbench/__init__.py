"""loaderbench: what limits a training or inference run, and what fixing it would give."""

__version__ = "0.1.0"
