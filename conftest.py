"""Settings of all tests."""

from hypothesis import HealthCheck
from hypothesis import settings

# No test asserts how long something takes: the first example of a process compiles. The same
# examples are drawn every time, so that a change alone decides what fails.
settings.register_profile(
    "placeto",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("placeto")
