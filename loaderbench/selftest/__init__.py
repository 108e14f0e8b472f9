"""Storage of known speed, and slow-downs of known size, against which attributions are checked.

Each bed is a context manager that takes an image tree and yields a mounted copy of it with a set speed
(`bed.truth`). Only the command `selftest` and `doctor` import this package; the code that it checks does not.
"""
