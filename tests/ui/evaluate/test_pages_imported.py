"""Results of other tools on Compare: uploaded, chosen from the address, refused in a sentence, never among our
figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.cli.main import main
from backend.domain.errors import NotFound
from backend.service import Workspace
from backend.service.evaluations import imported_results
from tests import simulated, studio
from tests.helpers.imported_files import BENCH, CONCURRENT, RECORDED, content


def test_an_upload_stands_beside_our_figures_with_its_definitions(studio_home: Workspace) -> None:
    studio.evaluation(studio_home, simulated.evaluation())
    at = studio.open_page("compare", ids="e-1")
    ours = at.dataframe[0].value
    at.file_uploader(key="compare_imported_uploaded").set_value(
        [(CONCURRENT, content(CONCURRENT), "application/json")]
    ).run()
    studio.check(at)
    assert "imported from GuideLLM 0.8.1" in studio.says(at)
    assert "nothing is tested" in studio.says(at)
    result = imported_results.listing(studio_home)[0]
    assert at.query_params["imported"] in (result.id, [result.id])
    assert at.dataframe[0].value.equals(ours)
    tables = [list(frame.value.columns) for frame in at.dataframe]
    assert any("With ours" in columns for columns in tables)


def test_the_address_opens_it_without_any_evaluation_and_a_gone_one_is_left_out(studio_home: Workspace) -> None:
    result = imported_results.add_files(studio_home, [RECORDED / name for name in BENCH])
    at = studio.open_page("compare", imported=f"{result.id},b-gone")
    assert "imported from vLLM bench" in studio.says(at)
    assert at.multiselect(key="compare_imported").value == [result.id]


def test_a_file_of_something_else_is_one_sentence_and_nothing_is_kept(studio_home: Workspace) -> None:
    at = studio.open_page("compare")
    at.file_uploader(key="compare_imported_uploaded").set_value([("mine.json", b'{"a": 1}', "application/json")]).run()
    studio.check(at)
    assert "no result of a load generator that is known here" in at.error[0].value.replace("\\", "")
    assert imported_results.listing(studio_home) == []


def test_the_command_imports_lists_and_forgets(
    studio_home: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["whetstone", "bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        return int(str(ended.value.code)), output.out + output.err

    code, message = run("import", str(RECORDED / CONCURRENT))
    assert code == 0 and "imported from GuideLLM 0.8.1" in message and "nothing is tested" in message
    result = imported_results.listing(studio_home)[0]
    assert result.id in run("imported")[1]
    assert run("import", str(Path("gone.json")))[0] == 2
    assert run("forget", result.id)[0] == 0
    assert run("forget", result.id)[0] == 2
    with pytest.raises(NotFound):
        imported_results.show(studio_home, "../whetstone")
