"""Settings of the whole suite."""

import os

from hypothesis import settings

# The test command tries the same examples each time, so that a landing hangs on the code and not on luck; random ones
# are for finding: HYPOTHESIS_PROFILE=explore pytest tests/formats
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
