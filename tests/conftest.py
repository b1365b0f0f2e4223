"""What all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Two shared cores make timing unreliable, so a slow example is no failure here.
settings.register_profile(
    "legroom", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("legroom")
