"""A stored evaluation: its verdict in one line, its figures as a table, the studio's charts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from backend.domain.evaluation.document import Evaluation as Document
from backend.present.charts import evaluation as charts
from backend.present.charts import tradeoffs
from backend.present.charts.theme import Theme
from backend.present.tables import evaluation as tables
from backend.present.words import headline, load_search, verdicts
from backend.service import Workspace
from backend.service.evaluations import reports
from backend.service.evaluations.evaluations import EvaluationView
from whetstone.html_display import Table, facts_table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Evaluation:
    """A stored evaluation. `document` is all of it, the same that `whetstone evaluate --json` prints."""

    def __init__(self, workspace: Workspace, view: EvaluationView) -> None:
        self._workspace, self.view = workspace, view
        self.id, self.title = view.id, view.title

    @property
    def document(self) -> Document:
        return self.view.document

    @property
    def verdict(self) -> str:
        """The whole of it in one line, quality beside speed; where nothing wins, why and what to try."""
        return " ".join(load_search.sentences(self.document)) or headline.headline_sentence(self.document)

    @property
    def verdicts(self) -> list[str]:
        """A sentence a variant and load."""
        return [each.text for each in verdicts.level_verdicts(self.document)]

    def table(self, percentile: str = "p50") -> Table:
        """Every metric of a variant and load, latencies at that percentile (p50, p90, p95, p99 or mean)."""
        return Table(tables.table(self.document, percentile))

    def charts(self, theme: Theme = "light") -> dict[str, Figure]:
        """Figures of plotly, by what they show."""
        from plotly import graph_objects

        drawn = {
            "throughput": charts.throughput(self.document, theme=theme),
            "ttft": charts.latency(self.document, theme=theme),
            "tpot": charts.latency(self.document, "tpot_ms", theme=theme),
            "price": charts.price(self.document, theme=theme),
            "pareto": tradeoffs.pareto(self.document, theme),
            "quality": tradeoffs.quality_speed(self.document, theme=theme),
        }
        return {name: graph_objects.Figure(each["data"], each["layout"]) for name, each in drawn.items()}

    def csv(self) -> str:
        """A row a variant and load, every metric and percentile."""
        return tables.csv(self.document)

    def report(self, to: str | Path = "report.html") -> Path:
        """Write the report, one HTML file that needs no network."""
        file = Path(to)
        file.write_bytes(reports.write_page(self._workspace, self.id))
        return file

    def __repr__(self) -> str:
        return f"<Evaluation {self.id}: {self.verdict}>"

    def _repr_html_(self) -> str:
        return (
            f"{facts_table(self.title, {'Evaluation': self.id, 'Verdict': self.verdict})}{self.table()._repr_html_()}"
        )
