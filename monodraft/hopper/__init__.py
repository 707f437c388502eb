"""The draft step on NVIDIA sm_90a (docs/hopper.md): one source, run as one launch or as a chain of launches."""
