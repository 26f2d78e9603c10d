from packaging.version import Version

import placeto_policy


def test_the_version_is_a_valid_one() -> None:
    assert str(Version(placeto_policy.__version__)) == placeto_policy.__version__
