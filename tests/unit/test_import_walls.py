"""The walls of the house: which package may import which, read from the syntax trees of every source file."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

EVERYONE = {"domain", "settings", "files", "processes", "sandbox", "transfer", "logs"}
ALLOWED: dict[str, set[str]] = {
    "pages": {"app", "service", "present", "domain"},
    "app": {"app", "service", "present", "domain"},
    "whetstone": {"whetstone", "service", "present", "domain"},
    "cli": {"cli", "service", "present", "domain", "processes"},
    "settings": set(),
    "files": {"domain"},
    "sandbox": {"domain", "settings"},
    "processes": set(),
    "transfer": {"domain"},
    "logs": set(),
    "public_addresses": set(),
    "served_keys": {"domain"},
    "address": {"domain", "settings", "public_addresses"},
    "endpoint": {"domain", "settings", "aws", "address", "served_keys"},
    "channel_copy": {"channel", "files"},
    "channel": {"files", "domain", "settings"},
    "domain": {"domain"},
    "present": {"present", "domain"},
    "preflight": {"layered", "catalog"} | EVERYONE,
    "service": {
        "service",
        "preflight",
        "channel",
        "endpoint",
        "address",
        "store",
        "catalog",
        "hardware",
        "artifacts",
        "launchers",
        "present",
        "gateway",
    }
    | EVERYONE,
    "gateway": {"gateway", "address"} | EVERYONE,
    "store": {"store"} | EVERYONE,
    "catalog": {"catalog", "aws"} | EVERYONE,
    "hardware": {"hardware"} | EVERYONE,
    "artifacts": {"artifacts", "aws"} | EVERYONE,
    "supervisor": {"supervisor", "channel", "store", "launchers", "artifacts", "hardware"} | EVERYONE,
    "launchers": {"launchers", "channel", "channel_copy", "aws"} | EVERYONE,
    "worker": {
        "worker",
        "preflight",
        "channel",
        "endpoint",
        "address",
        "engines",
        "serving",
        "evaluate",
        "layered",
        "artifacts",
        "hardware",
        "catalog",
        "present",
        "gateway",
        "served_keys",
    }
    | EVERYONE,
    "engines": {"engines", "layered"} | EVERYONE,
    "serving": {"serving", "served_keys", "layered"} | EVERYONE,
    "evaluate": {"evaluate", "endpoint", "address", "layered", "present", "hardware"} | EVERYONE,
    "layered": {"layered"} | EVERYONE,
    "aws": {"aws"} | EVERYONE,
}
"""package -> packages that it may import. docs/decisions/ holds the widenings: worker -> hardware, catalog (1);
engines, evaluate -> layered, what both know of a model one layer at a time (15); present, and who may import it (17);
supervisor -> hardware, what its host has (26); endpoint -> aws, which signs requests to SageMaker (32); serving ->
layered, whose tokenizer is the one that was measured (43); evaluate -> hardware, whose energy counters the load
generator reads between two variants (52); service -> gateway, which it hands keys and servers (62);
worker -> gateway, served_keys, since the worker of an endpoint listens itself (64)."""

BASE = {"errors", "figures", "frozen", "roles", "similar_names", "validation"}
FLOORS = (
    {"maths", "model", "machine", "workload", "kernels"},
    {"recipe", "load"},
    {"needs", "evaluation"},
    {"neuron"},
    {"rules", "limits", "imported", "deploy", "launch_commands"},
    {"planner", "what_if", "tuning"},
    {"jobs"},
    {"managed"},
)
"""The rooms of the domain from the ground up. A room imports rooms of lower floors only."""

HEAVY = {
    "torch",
    "transformers",
    "vllm",
    "compressed_tensors",
    "safetensors",
    "numpy",
    "pandas",
    "llmcompressor",
    "awq",
    "datasets",
    "transformers_neuronx",
    "neuronx_distributed_inference",
    "scipy",
}
OWN_PLACES = {
    "pandas": ("app/",),
    "scipy": ("backend/domain/maths/",),
    "botocore": ("backend/domain/load/aws_event_stream.py", "backend/aws/"),
}
"""Streamlit's tables are coloured by pandas' own styles alone; statistics are in one room, framing in one module."""
HEAVY_PLACES = (
    "backend/engines/",
    "backend/layered/",
    "backend/serving/",
    "backend/evaluate/quality/",
    "backend/hardware/",
)
ONLY_IN = {
    "streamlit": ("app/", "pages/"),
    "boto3": ("backend/aws/",),
    "aiohttp": ("backend/gateway/",),
    "ray": ("backend/launchers/cluster/inside/",),
    "huggingface_hub": ("backend/catalog/",),
    "sqlmodel": ("backend/store/", "backend/supervisor/"),
    "sqlalchemy": ("backend/store/",),
    "typer": ("backend/cli/",),
}
MODULES_A_FOLDER, PAGES = 15, 20
LINES, LINES_OF_A_PAGE = 450, 150


def sources(root: Path) -> list[Path]:
    return sorted(path for top in ("app", "pages", "backend", "whetstone") for path in (root / top).rglob("*.py"))


def imports(path: Path, *, types: bool = True) -> list[tuple[str, bool]]:
    """(dotted name, run when the module is imported) of every import; a TYPE_CHECKING block never runs.

    Without `types` the imports of such blocks are left out.
    """
    return _imports(path.read_text(), types)


@cache
def _imports(source: str, types: bool) -> list[tuple[str, bool]]:
    tree = ast.parse(source)
    inside, for_types = set[int](), set[int]()
    for block in ast.walk(tree):
        if isinstance(block, ast.FunctionDef | ast.AsyncFunctionDef):
            inside |= {id(node) for node in ast.walk(block)}
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            for_types |= {id(node) for node in ast.walk(block)}
    names = []
    for node in ast.walk(tree):
        if id(node) in for_types and not types:
            continue
        at_top = id(node) not in inside | for_types
        if isinstance(node, ast.Import):
            names += [(alias.name, at_top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [(f"{node.module}.{alias.name}", at_top) for alias in node.names]
    return names


def package(name: str) -> str:
    """`backend.domain.recipe` -> `domain`, `app.formatting` -> `app`."""
    parts = name.split(".")
    return parts[1] if parts[0] == "backend" and len(parts) > 1 else parts[0]


def dotted(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def wall_breaks(root: Path) -> list[str]:
    """Imports that a wall between packages does not let through."""
    return [
        f"{dotted(path, root)} imports {name}"
        for path in sources(root)
        for name, _ in imports(path)
        if name.split(".")[0] in {"app", "pages", "backend", "whetstone"}
        and (own := package(dotted(path, root))) in ALLOWED
        and package(name) not in ALLOWED[own] | {own, "backend"}
    ]


def floor_breaks(root: Path) -> list[str]:
    """Imports inside the domain that lead to the same floor or up, and rooms without a floor."""
    height = {room: number for number, floor in enumerate(FLOORS, 1) for room in floor} | dict.fromkeys(BASE, 0)
    breaks = []
    for path in sources(root):
        parts = dotted(path, root).split(".")
        if parts[:2] != ["backend", "domain"] or len(parts) < 3:
            continue
        rooms = {name.split(".")[2] for name, _ in imports(path) if name.startswith("backend.domain.")} - {parts[2]}
        unknown = {parts[2], *rooms} - set(height)
        breaks += [f"{'.'.join(parts)} is in or imports {room}, which has no floor" for room in unknown]
        breaks += [
            f"{'.'.join(parts)} imports {r}, not below it"
            for r in rooms - unknown
            if height[r] >= max(1, height[parts[2]])
        ]
    return breaks


MENDING = "backend.serving.vllm_plugin."
"""Mends what the serve environment's lock pins to a release, its private parts too."""


def private_breaks(root: Path) -> list[str]:
    """Imports of what another project keeps to itself: it may be gone with its next release."""
    return [
        f"{dotted(path, root)} imports {name}"
        for path in sources(root)
        if not dotted(path, root).startswith(MENDING)
        for name, _ in imports(path)
        if any(part.startswith("_") for part in name.split(".")) and package(name) not in {"__future__", *ALLOWED}
    ]


def circles(root: Path, package_root: str) -> list[str]:
    """Rooms directly below a package that import each other, however far around, when they are loaded."""
    graph: dict[str, set[str]] = {}
    depth = package_root.count(".") + 1
    for path in sources(root):
        own = dotted(path, root).split(".")
        if ".".join(own[:depth]) != package_root or len(own) <= depth:
            continue
        names = [name.split(".") for name, at_top in imports(path) if at_top and name.startswith(f"{package_root}.")]
        graph.setdefault(own[depth], set()).update(name[depth] for name in names if name[depth] != own[depth])
    try:
        TopologicalSorter(graph).prepare()
    except ValueError as error:
        return [f"{package_root}: {error.args[1]}"]
    return []


def module_circles(root: Path, package_root: str) -> list[str]:
    """Modules of a package that import each other, however far around, inside functions too; types alone may."""
    paths = {dotted(path, root): path for path in sources(root)}
    modules = {name: path for name, path in paths.items() if name.startswith(f"{package_root}.")}
    graph = {}
    for module, path in modules.items():
        names = [name for name, _ in imports(path, types=False)]
        imported = {name if name in modules else name.rpartition(".")[0] for name in names}
        graph[module] = (imported & set(modules)) - {module}
    try:
        TopologicalSorter(graph).prepare()
    except ValueError as error:
        return [" <- ".join(error.args[1])]
    return []


def vendor_breaks(root: Path) -> list[str]:
    """Vendor libraries outside their places or at module level, and anything but pydantic in what is pure."""
    breaks = []
    for path in sources(root):
        where = path.relative_to(root).as_posix()
        pure = where.startswith(("backend/domain/", "backend/present/"))
        for name, at_top in imports(path):
            top = name.split(".")[0]
            outside = top in ONLY_IN and not where.startswith(ONLY_IN[top])
            own = where.startswith(OWN_PLACES.get(top, ()))
            placed = own or where.startswith(HEAVY_PLACES)
            heavy = top in HEAVY and (not placed or (at_top and top != "numpy"))
            impure = pure and not own and top not in sys.stdlib_module_names and top not in {"pydantic", "backend"}
            if outside or heavy or impure:
                breaks.append(f"{where} imports {name}")
    return breaks


def size_breaks(root: Path) -> list[str]:
    """Folders of too many modules and modules of too many lines."""
    paths = [path for path in sources(root) if path.name != "__init__.py" and "versions" not in path.parts]
    folders = Counter(path.parent.relative_to(root).as_posix() for path in paths)
    crowded = [
        f"{folder} holds {count} modules"
        for folder, count in folders.items()
        if count > (PAGES if folder == "pages" else MODULES_A_FOLDER)
    ]
    lines = {path.relative_to(root).as_posix(): len(path.read_text().splitlines()) for path in paths}
    long = [
        f"{where} has {count} lines"
        for where, count in lines.items()
        if count > (LINES_OF_A_PAGE if where.startswith("pages/") else LINES)
    ]
    return crowded + long


def drawn_texts(root: Path) -> list[str]:
    """Texts of a page that Streamlit would draw: a bare string after the page's own docstring."""
    return [
        f"pages/{page.name}:{statement.lineno} draws a bare string"
        for page in sorted((root / "pages").glob("*.py"))
        for statement in ast.parse(page.read_text()).body[1:]
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    ]


def shared_by_tests(root: Path) -> list[str]:
    """Return imports of one test module from another: what tests share is in helper modules and in conftest.py."""
    return [
        f"{path.relative_to(root).as_posix()} imports {name}"
        for top in ("tests", "benchmarks")
        for path in sorted((root / top).rglob("*.py"))
        for name, _ in imports(path)
        if name.startswith("tests.") and any(part.startswith("test_") for part in name.split("."))
    ]


def other_homes(root: Path) -> list[str]:
    """Return fixtures called `home` outside tests/conftest.py: one that differs has a name that says how."""
    breaks = []
    for path in sorted((root / "tests").rglob("*.py")):
        # A cheap look first: most modules define no `home` at all.
        source = path.read_text()
        if path == root / "tests" / "conftest.py" or "def home(" not in source:
            continue
        breaks += [
            f"{path.relative_to(root).as_posix()} has a fixture called home"
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef)
            and node.name == "home"
            and any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
        ]
    return breaks


def test_no_test_module_imports_another() -> None:
    assert shared_by_tests(ROOT) == []


def test_one_fixture_is_called_home() -> None:
    assert other_homes(ROOT) == []


def test_pages_draw_no_docstring_of_a_constant() -> None:
    assert drawn_texts(ROOT) == []


def test_modules_import_only_what_their_walls_let_through() -> None:
    assert wall_breaks(ROOT) == []


def test_rooms_import_downwards_and_never_in_a_circle() -> None:
    assert floor_breaks(ROOT) == []
    assert [
        circle for inside in ("backend.present", "backend.service", "app") for circle in circles(ROOT, inside)
    ] == []
    assert module_circles(ROOT, "backend.domain") == []


def test_vendor_libraries_stay_in_their_places_and_inside_functions() -> None:
    assert vendor_breaks(ROOT) == [] and private_breaks(ROOT) == []


def test_folders_and_modules_are_of_a_size_that_a_reader_can_hold() -> None:
    assert size_breaks(ROOT) == []


def test_each_wall_catches_a_break(tmp_path: Path) -> None:
    def write(where: str, text: str) -> None:
        (tmp_path / where).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / where).write_text(text)

    write("backend/store/queue.py", "from backend.service import jobs\n")
    write("backend/domain/maths/paired_scores.py", "from backend.domain.rules import check\n")
    write("backend/domain/maths/student_t.py", "from scipy import special\n")
    write("backend/domain/attic/junk.py", "")
    write("backend/domain/evaluation/energy.py", "from backend.domain.evaluation.document import Level\n")
    write(
        "backend/domain/evaluation/document.py",
        "def add():\n    from backend.domain.evaluation import energy\n",
    )
    write("app/jobs/cards.py", "from app.results import costs\n")
    write("app/results/costs.py", "from app.jobs import cards\n")
    write("backend/cli/main.py", "import torch\n")
    write("backend/catalog/hub.py", "from huggingface_hub.utils._http import get_session\n")
    write("backend/present/report_content.py", "import plotly\n")
    write("pages/home.py", "\n" * (LINES_OF_A_PAGE + 1))
    write("pages/disk.py", '"""How much disk is used?"""\nMOST = 5\n"""Rows."""\n')
    for number in range(MODULES_A_FOLDER + 1):
        write(f"backend/aws/part_{number}.py", "")
    write("tests/ui/test_pages_home.py", "from tests.unit.test_jobs import job\n")
    assert shared_by_tests(tmp_path) == ["tests/ui/test_pages_home.py imports tests.unit.test_jobs.job"]
    write("tests/conftest.py", "import pytest\n@pytest.fixture\ndef home(): ...\n")
    write("tests/unit/test_queue.py", "import pytest\n@pytest.fixture(scope='module')\ndef home(): ...\n")
    assert other_homes(tmp_path) == ["tests/unit/test_queue.py has a fixture called home"]
    assert wall_breaks(tmp_path) == ["backend.store.queue imports backend.service.jobs"]
    assert sorted(floor_breaks(tmp_path)) == [
        "backend.domain.attic.junk is in or imports attic, which has no floor",
        "backend.domain.maths.paired_scores imports rules, not below it",
    ]
    assert private_breaks(tmp_path) == ["backend.catalog.hub imports huggingface_hub.utils._http.get_session"]
    assert circles(tmp_path, "app") and not circles(tmp_path, "backend.service")
    energy, document = "backend.domain.evaluation.energy", "backend.domain.evaluation.document"
    assert module_circles(tmp_path, "backend.domain") in (
        [f"{energy} <- {document} <- {energy}"],
        [f"{document} <- {energy} <- {document}"],
    )
    assert vendor_breaks(tmp_path) == [
        "backend/cli/main.py imports torch",
        "backend/domain/maths/student_t.py imports scipy.special",
        "backend/present/report_content.py imports plotly",
    ]
    assert drawn_texts(tmp_path) == ["pages/disk.py:3 draws a bare string"]
    assert size_breaks(tmp_path) == ["backend/aws holds 16 modules", f"pages/home.py has {LINES_OF_A_PAGE + 1} lines"]
