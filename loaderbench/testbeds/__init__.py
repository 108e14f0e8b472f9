"""Storage of known speed, and slow-downs of known size: what an attribution is checked against.

Each bed is a context manager that takes an image tree and yields a mounted copy of it whose speed
was set (`bed.truth`). Nothing in `loaderbench.analysis` may import this package.
"""
