"""The notebook of the documentation runs, from its first cell to its last."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from command_runs import environment


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the libraries that run it
def test_the_tour_runs_and_its_outputs_are_those_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(folder, str(tmp_path))
    notebook = nbformat.read("docs/tour.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    in_order = list(range(1, len(code) + 1))
    assert [cell.execution_count for cell in code] == in_order
    kinds = {output.output_type for cell in code for output in cell.outputs}
    assert kinds <= {"stream", "execute_result"}
    for cell in code:
        cell.outputs, cell.execution_count = [], None
        cell.source = cell.source.replace("seconds=3", "seconds=0.3")
    client = NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=environment())
    assert [cell.execution_count for cell in code] == in_order
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)
