"""Help of all commands by its style, those of plug-ins too."""

import re
from collections import defaultdict
from collections.abc import Iterator

import click
import pytest

import experiment_plugin  # noqa: F401
from placeto_tools.main import placeto

NO_NOUN = {
    *("How", "What", "Whether", "Which", "Where", "When"),
    *("Who", "With", "On", "Of", "In", "If"),
}
# Options whose help says more in some commands.
OF_EACH_COMMAND = {
    *("--output", "--seconds", "--max-evaluations"),
    # Which `compare` takes several times.
    *("--cluster", "--gpus", "--micro-batches", "--policy"),
    # Of experiments, which say what is trained and tested.
    *("--seeds", "--placers", "--groups", "--granularities", "--updates", "--hparam", "--only"),
}


def walk(command: click.Command, name: str = "placeto") -> Iterator[tuple[str, click.Command]]:
    """Yield each command and group below one, with its whole name."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for below in command.list_commands(context):
            _, subcommand, _ = command.resolve_command(context, [below])
            assert subcommand is not None, below
            yield from walk(subcommand, f"{name} {below}")


def options(command: click.Command) -> list[click.Option]:
    """Return the options that the help of a command shows."""
    return [
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]


COMMANDS = dict(walk(placeto))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_has_short_sentences_and_options_that_are_nouns_with_a_default(name: str) -> None:
    command = COMMANDS[name]
    first, *later_lines = (command.help or "").splitlines()
    assert re.fullmatch(r"[A-Z][a-z]+ .{,75}\.", first)
    assert len(first) <= 80
    assert first.split()[0] not in NO_NOUN
    assert later_lines
    paragraphs = re.split(r"\n\s*\n", command.help or "")
    prose = [" ".join(text.split()) for text in paragraphs if not text.strip().startswith("\b")]
    context = click.Context(command, **placeto.context_settings)
    for option in options(command):
        text = option.help or ""
        assert re.match(r"[A-Z].*(\.|\])$", text), (option.opts, text)
        assert text.split()[0] not in NO_NOUN, (option.opts, text)
        click_shows_default = "default" in option.get_help_extra(context)
        has_default = click_shows_default or "[default: " in text or "[required]" in text
        assert has_default or option.required or option.is_flag or option.multiple, option.opts
        prose.append(text.partition("  [")[0])
    for text in prose:
        for sentence in re.split(r"(?<=[.!?]) +(?=[A-Z])|;", text):
            without_lists = re.sub(r"(\S+, ){3,}\S+", "", sentence)  # names to choose from
            assert len(without_lists.split()) <= 25, sentence
            assert not sentence.startswith("What "), sentence


def test_an_option_has_one_type_and_meaning() -> None:
    assert {"placeto", "placeto plot curves", "placeto experiment table1"} <= set(COMMANDS)
    meanings: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for option in (option for command in COMMANDS.values() for option in options(command)):
        name, text = option.opts[-1], (option.help or "").partition("  [")[0]
        meanings[name].add((option.type.name, "" if name in OF_EACH_COMMAND else text))
    assert {
        name: types_and_texts
        for name, types_and_texts in meanings.items()
        if len(types_and_texts) > 1
    } == {}
