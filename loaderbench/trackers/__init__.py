"""Experiment trackers that a watched run is logged to. Each module imports its library when it opens a run, so that
none is imported unless it is asked for."""
