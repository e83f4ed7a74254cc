"""What hypothesis finds in the unit tests are mistakes: a machine that is held up is none.

Not in `tests/conftest.py`: hypothesis takes 0.2 s to import, and tests that fork have a pytest each.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
