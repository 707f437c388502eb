"""Makes the test kernels' words importable and sets the tier."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
