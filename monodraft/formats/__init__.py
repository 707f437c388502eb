"""Numbers of a storage format, on the host: bf16, e4m3, e8m0 and MXFP8, in NumPy and in torch (docs/formats.md).

`mxfp8` is the NumPy reference; `mxfp8_torch` gives the same bytes on any torch device. Only the latter imports torch.
"""
