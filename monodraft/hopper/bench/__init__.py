"""Speed of the Hopper step against PyTorch, in one run (docs/hopper.md)."""
