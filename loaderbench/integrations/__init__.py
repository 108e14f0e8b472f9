"""Callbacks for trainers of other libraries. Each module imports its library; none is imported unless it is used."""
