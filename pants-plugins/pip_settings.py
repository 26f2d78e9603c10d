"""Print shell commands that hand pip's configuration on, for ``eval`` in ``pants``.

uv does not read it, and Pants runs pip without it. What pip is told of indexes, folders of wheels
and certificates is told to both, and as PIP_* variables to the tests that run pip themselves.
"""

import ast
import os
import shlex
import subprocess
import sys
from typing import Dict, List

HANDED_ON = ("cert", "extra-index-url", "find-links", "index-url", "no-index", "trusted-host")


def read_settings() -> Dict[str, List[str]]:
    """Return the words of each setting that is handed on."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    settings = {}
    for section in ("global", "install", ":env:"):  # a later one wins, as in pip
        for line in listed.splitlines():
            name, _, value = line.partition("=")
            key = name[len(section) + 1 :]
            if name.startswith(section + ".") and key in HANDED_ON:
                settings[key] = ast.literal_eval(value).split()
    for key in ("cert", "find-links"):
        settings[key] = [located(text) for text in settings.get(key, [])]
    return {key: words for key, words in settings.items() if words}


def located(text: str) -> str:
    """Return an address as it is, and a path so that it is the same from any folder."""
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


def variables(settings: Dict[str, List[str]]) -> Dict[str, str]:
    """Return environment variables that say the same to uv and to Pants."""
    environment = {}
    if "cert" in settings:
        environment["SSL_CERT_FILE"] = environment["PANTS_CA_CERTS_PATH"] = settings["cert"][0]
    if "find-links" in settings:
        environment["UV_FIND_LINKS"] = ",".join(settings["find-links"])
        environment["PANTS_PYTHON_REPOS_FIND_LINKS"] = repr(settings["find-links"])
    main, extra = settings.get("index-url", []), settings.get("extra-index-url", [])
    if settings.get("no-index", ["no"])[0].lower() in {"1", "true", "yes", "on", "y", "t"}:
        environment["UV_OFFLINE"] = "1"
        environment["PANTS_PYTHON_REPOS_INDEXES"] = "[]"
    elif main or extra:
        environment["UV_INDEX"] = " ".join(extra)
        environment["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # pip's
        environment["PANTS_PYTHON_REPOS_INDEXES"] = ("" if main else "+") + repr(main + extra)
    if main:
        environment["UV_DEFAULT_INDEX"] = main[0]
    if "trusted-host" in settings:
        environment["UV_INSECURE_HOST"] = " ".join(settings["trusted-host"])
    return {name: text for name, text in environment.items() if name not in os.environ}


if __name__ == "__main__":
    settings = read_settings()
    for_pip = {"PIP_" + key.upper().replace("-", "_"): words for key, words in settings.items()}
    exported = {**{name: " ".join(words) for name, words in for_pip.items()}, **variables(settings)}
    for name, text in exported.items():
        print(f"export {name}={shlex.quote(text)}")
    if settings:
        print("say", shlex.quote("handing pip's configuration on: " + ", ".join(sorted(settings))))
