"""Settings of the whole suite."""

import os

from hypothesis import settings

# The test command tries the same examples each time, so that a landing hangs on the code and not on luck; random ones
# are for finding: HYPOTHESIS_PROFILE=explore pytest tests/formats tests/loop tests/reference/test_rounded.py
# Tests set no max_examples of their own: it would hold in this profile too.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
