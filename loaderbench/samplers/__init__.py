"""Samplers: one file a source of channels; `sources` chooses those that a case gets."""
