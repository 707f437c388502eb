"""monodraft: a whole DSpark draft step as one kernel launch on each tensor-parallel rank."""

__version__ = "0.1.0"
