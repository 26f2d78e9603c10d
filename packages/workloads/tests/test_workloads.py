from packaging.version import Version

import placeto_workloads


def test_the_version_is_a_valid_one() -> None:
    assert str(Version(placeto_workloads.__version__)) == placeto_workloads.__version__
