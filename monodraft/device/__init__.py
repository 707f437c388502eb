"""Device words in FlyDSL for gfx950: memory, bounded waits, the MXFP8 GEMV and the row norms (docs/device.md).

`words` holds the words themselves and needs FlyDSL; what is here does not.
"""

from monodraft.device.geometry import Geometry
from monodraft.device.health import Failure, next_tag
from monodraft.device.lint import Finding, lint

__all__ = ["Failure", "Finding", "Geometry", "lint", "next_tag"]
