"""How fast the catalog's page is with 5,000 imported models beside the published ones.

The models are imported rows of SHAPES different architectures, as fine-tunes of few base models are; their folders are
not there, as on a disk that is not mounted. Server time of the page in an open session, as benchmarks/pages.py measures
it: from the request on the websocket to the message that the script has finished. Also what the first filter on an
instance costs, which holds every shape against every instance, and what the sync of the bundled files does when nothing
has changed. Prints a table and writes benchmarks/results/catalog.md and .json: `python benchmarks/catalog.py [--note
"..."]`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sqlalchemy import insert  # noqa: E402

from backend import service  # noqa: E402
from backend.domain.maths.intervals import percentile  # noqa: E402
from backend.domain.rules.catalog_filter import CatalogFilter  # noqa: E402
from backend.service import Workspace  # noqa: E402
from backend.service.models import catalog, catalog_sync, models  # noqa: E402
from backend.settings import Settings  # noqa: E402
from backend.store.tables import ModelRow, now  # noqa: E402
from benchmarks.pages import about  # noqa: E402
from benchmarks.pages_server import Server, Visitor  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
BAR_MS = 300.0
MODELS, SHAPES = 5_000, 200
WARM_ROUNDS = 3
INSTANCE = "ml.g5.12xlarge"
AWQ = f"catalog_technique=INT4+(AWQ)&catalog_instance={INSTANCE}"
PAGES = {
    "catalog": "",
    "catalog, words": "catalog_words=model+017",
    "catalog, published": "catalog_origin=published",
    "catalog, most parameters first": "catalog_sort=Most+parameters",
    "catalog, page 125": "catalog_page=125",
    "catalog, AWQ on ml.g5.12xlarge": AWQ,
    "catalog, all filters": f"catalog_words=model&{AWQ}&catalog_family=LLaMA&catalog_min_parameters=1"
    "&catalog_sort=Longest+context",
    "catalog, with why not": "catalog_why=true",
    "model, published": "",
}
MODEL = "id=meta-textgeneration-llama-3-70b"


def seed(home: Path, count: int) -> Workspace:
    """A home with that many imported models. Sizes rise with a shape's number; every tenth cannot be quantized in
    groups."""
    opened = service.open_workspace(Settings(home=home))
    base = models.resolve(opened, "starter")
    rows = []
    for number in range(count):
        shape, path = number % SHAPES, f"/not/mounted/model-{number:05d}"
        layers, hidden = 16 + shape % 64, 1024 * (1 + shape % 8)
        sizes = {
            "layers": layers,
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden + (shape % 10 == 0),
            "heads": hidden // 64,
        }
        facts = {
            **sizes,
            "parameters": 12 * layers * hidden**2,
            "weights_bytes": 24 * layers * hidden**2,
            "vocabulary": 32_000,
        }
        changes = {"id": f"model-{number:05d}", "origin": "imported", "path": path, "draft": None, **facts}
        card = base.model_copy(update=changes).model_dump_json()
        rows.append(
            {
                "path": path,
                "name": f"model-{number:05d}",
                "owner": "t",
                "licence": "mit",
                "created_at": now(),
                "card": card,
            }
        )
    with opened.store.session() as session:
        session.execute(insert(ModelRow), rows)
    return opened


def timed(act: Any) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1000


def run(home: Path, count: int, rounds: int) -> dict[str, Any]:
    opened = seed(home, count)
    first = timed(lambda: catalog_sync.sync(opened))
    fits = timed(lambda: catalog.count(opened, CatalogFilter(target=INSTANCE)))
    again = [timed(lambda: catalog_sync.sync(opened)) for _ in range(50)]
    by_name: dict[str, list[float]] = {name: [] for name in PAGES}
    with Server(home, home / "server.log") as server, Visitor(server) as visitor:
        for number in range(WARM_ROUNDS + rounds):
            for name, query in PAGES.items():
                page = ("model", MODEL) if name.startswith("model") else ("catalog", query)
                took = visitor.visit(*page) * 1000
                if number >= WARM_ROUNDS:
                    by_name[name].append(took)
    return {"pages": by_name, "first_sync_ms": first, "first_fits_ms": fits, "sync_ms": again}


def report(options: dict[str, Any], message: dict[str, Any]) -> str:
    lines = [
        "# The catalog with many imported models",
        "",
        *(f"- {name}: {value}" for name, value in message.items() if value),
        "",
    ]
    lines += [
        f"Server time of a page, ms, over {len(options['pages']['catalog'])} rounds in an open session. Bar: p95 under "
        f"300 ms.",
        "",
        "| page | p50 | p95 | highest | holds |",
        "|---|---|---|---|---|",
    ]
    for name, values in options["pages"].items():
        p95 = percentile(sorted(values), 95)
        lines.append(
            f"| {name} | {median(values):.0f} | {p95:.0f} | {max(values):.0f} | {'yes' if p95 < BAR_MS else 'NO'} |"
        )
    first, fits, again = options["first_sync_ms"], options["first_fits_ms"], median(options["sync_ms"])
    lines += [
        "",
        f"The first sync of a new home took {first:.0f} ms, the first filter on an instance, which holds every shape "
        f"against",
    ]
    lines += [f"every instance, {fits:.0f} ms. A sync that finds nothing changed took {again:.2f} ms (median)."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=MODELS)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--note", default="")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    facts = about(options.note, {"imported models": options.models, "shapes": min(SHAPES, options.models)})
    with tempfile.TemporaryDirectory() as folder:
        result = run(Path(folder) / "home", options.models, options.rounds)
    text = report(result, facts)
    print(text)
    if not options.no_write:
        (RESULTS / "catalog.md").write_text(text)
        (RESULTS / "catalog.json").write_text(json.dumps({**facts, "bar_ms": BAR_MS, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
