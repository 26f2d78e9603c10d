# What BUILD files may call, and name, besides Pants' own targets.

# The folders of packages/. A new one is named here, and calls sources, tests and wheel.
PACKAGES = (
    *("graphs", "simulator", "policy", "baselines", "capture", "workloads", "execution"),
    *("placeto", "experiments"),
)
WITHOUT_TORCH = ("graphs", "simulator")
# Compiled code is kept by all sources of its package, so that every test has to see all of them.
COMPILED = ("graphs", "simulator", "policy", "baselines")


def sources(read=()):
    """Declare the modules of a package, and what lies beside them.

    Modules that others read as texts are not imported, so that Pants has to be told of them.
    """
    whole = [":src"] if build_file_dir().parent.name in COMPILED else []
    readers = {reader: {"dependencies": [":data", *texts]} for reader, texts in dict(read).items()}
    python_sources(
        sources=["**/*.py"],
        dependencies=[":data"],
        overrides={"*/__init__.py": {"dependencies": [":data", *whole]}, **readers},
    )
    resources(name="data", sources=["**/*", "!**/*.py", "!**/BUILD"])


def tests(helpers=True, read=(), alone=()):
    """Declare the tests of a package, and the modules that help them.

    They see all libraries, or those of a package without torch a few: Pants installs two sets, and
    not one for each file. What examples in docstrings import, nothing else tells Pants, nor what a
    file reads, runs by its path, or imports by name: `read` has the targets by the file's name.
    Files of `alone` take as long as all others together, and run in a process of their own.
    """
    name = build_file_dir().parent.name
    libraries = "without-torch" if name in WITHOUT_TORCH else "python"
    dependencies = [f"//3rdparty/python:{libraries}", f"{build_file_dir().parent}/src"]
    of_tests = {file: {"batch_compatibility_tag": None} for file in alone}
    of_helpers = {}
    for file, targets in dict(read).items():
        if file.startswith("test_"):
            of_tests.setdefault(file, {})["dependencies"] = [*dependencies, *targets]
        else:
            of_helpers[file] = {"dependencies": targets}
    python_tests(
        batch_compatibility_tag=name,
        dependencies=dependencies,
        overrides=of_tests,
    )
    if helpers:
        python_test_utils(name="utilities", sources=["*.py", "!test_*.py"], overrides=of_helpers)


def wheel(name):
    """Declare the wheel of a package: its metadata, and the sources below src/."""
    resources(name="metadata", sources=["pyproject.toml", "README.md"])
    python_distribution(
        name="wheel",
        dependencies=[":metadata", "./src"],
        provides=python_artifact(name=name),
        generate_setup=False,
        sdist=False,
    )
