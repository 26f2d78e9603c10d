"""``python -m placeto_tools``: the command."""

from placeto_tools.main import placeto

if __name__ == "__main__":
    placeto(prog_name="placeto")
