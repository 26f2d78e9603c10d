# What BUILD files may call besides Pants' own targets.


def wheel(name):
    """Declare the wheel of a package: its metadata, and the sources below src/."""
    resources(name="metadata", sources=["pyproject.toml", "README.md"])
    files(name="changelog", sources=["CHANGELOG.md"])
    python_distribution(
        name="wheel",
        dependencies=[":metadata", "./src"],
        provides=python_artifact(name=name),
        generate_setup=False,
        sdist=False,
    )
