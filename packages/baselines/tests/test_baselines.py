from packaging.version import Version

import placeto_baselines


def test_the_version_is_a_valid_one() -> None:
    assert str(Version(placeto_baselines.__version__)) == placeto_baselines.__version__
