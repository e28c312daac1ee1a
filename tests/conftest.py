"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# The first call of a compiled loop compiles it; machines are noisy: no test is timed.
settings.register_profile("fedveil", deadline=None, derandomize=True)
settings.load_profile("fedveil")
