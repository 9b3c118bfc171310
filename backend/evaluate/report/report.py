"""Writes an evaluation as one self-contained HTML file that needs no network, ever. What it says is `content`'s job.

The charting script is the one that the plotly package brings; a policy in the page forbids it every connection. `python
-m backend.evaluate.report.report FOLDER` reads FOLDER/request.json (`evaluation`, `extras`), writes FOLDER/report.html.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend import files
from backend.domain.errors import DiskFull, WorkError
from backend.domain.evaluation.document import Evaluation
from backend.evaluate.report.content import content
from backend.present.report_content import Extras
from backend.settings import ASSETS

if TYPE_CHECKING:
    from markupsafe import Markup

TEMPLATES = ASSETS / "report"
REPORT = "report.html"


def write_report(evaluation: Evaluation, folder: Path, extras: Extras | None = None) -> Path:
    """Write `folder`/report.html, 5 to 8 MB, and give its path. An older one stays whole until the new one is.

    Raises WorkError where plotly is not installed, DiskFull where the file does not fit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / REPORT
    try:
        files.write(path, render(evaluation, extras))
    except DiskFull:
        raise DiskFull(
            "The disk filled up while writing the report: free 10 MB and run `whetstone evaluate` again."
        ) from None
    return path


def render(evaluation: Evaluation, extras: Extras | None = None) -> str:
    """The page. Every text of the user's is escaped by the template; scripts and styles come from this package
    alone."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    # A template that escapes every text.
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["code"] = _code
    template = environment.get_template("report.html")
    # Our own scripts and styles go in unescaped.
    parts: dict[str, Any] = {
        "plotly": Markup(_plotly_script()),
        "style": Markup((TEMPLATES / "report.css").read_text("utf-8")),
        "script": Markup((TEMPLATES / "report.js").read_text("utf-8")),
    }
    return template.render(**parts, **content(evaluation, extras or Extras()))


def _plotly_script() -> str:
    package = find_spec("plotly")
    if package is None or package.origin is None:
        raise WorkError(
            "The report needs the plotly package: run `make run` or `pip install plotly`, then evaluate again."
        )
    script = (Path(package.origin).parent / "package_data" / "plotly.min.js").read_text("utf-8")
    # Inside a page, this sequence would end the script wherever it stands.
    return re.sub(r"</(script)", r"<\\/\1", script, flags=re.IGNORECASE)


def _code(sentence: str) -> Markup:
    """Escaped, with `names` in backticks set as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(sentence))))


def main(folder: Path) -> None:
    request = json.loads((folder / "request.json").read_bytes())
    write_report(Evaluation.model_validate(request["evaluation"]), folder, Extras.model_validate(request["extras"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
