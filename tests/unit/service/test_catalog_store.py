"""The catalog in the store: synced by content hash, safe with two processes, narrowed and paged as the rules themselves
would."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from backend import service
from backend.catalog.bundled import models as bundled
from backend.catalog.bundled import published
from backend.domain.errors import InvalidCatalog, InvalidRecipe, NotFound, UnknownFilter
from backend.domain.jobs.jobs import JobState
from backend.domain.model.facts import ModelCard, PublishedModel
from backend.domain.rules import catalog_filter as words
from backend.domain.rules import check as compat
from backend.domain.rules.catalog_filter import CatalogFilter, CatalogOrder
from backend.domain.rules.nearest_recipe import with_dividing_group
from backend.service import Workspace
from backend.service.jobs import artifacts
from backend.service.machines import targets
from backend.service.models import catalog, catalog_sync, models
from backend.service.studio import demo_export
from backend.settings import CHECKOUT
from backend.store import catalog as table
from backend.store import sync_state
from backend.store.database import StoreUnavailable
from tests import studio
from tests.homes import open_home
from tests.properties import examples

G5 = "ml.g5.12xlarge"


@pytest.fixture(scope="module")
def home_with_catalog(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Read only: one catalog for all tests that change nothing."""
    opened = open_home(tmp_path_factory.mktemp("catalog"))
    catalog_sync.sync(opened)
    return opened


def ids(workspace: Workspace, **options: object) -> list[str]:
    return [line.entry.id for line in catalog.listing(workspace, CatalogFilter.model_validate(options))]


def state(workspace: Workspace) -> str | None:
    with workspace.store.read() as session:
        return sync_state.stored_version(session, "bundled")


def test_the_published_columns_are_the_matrix_cell_by_cell(home_with_catalog: Workspace) -> None:
    with published.MATRIX.open() as file:
        matrix = {row["jumpstart_model_id"]: row for row in csv.DictReader(file)}
    rows = catalog.listing(home_with_catalog, CatalogFilter(origins=("published",)))
    assert [line.entry.id for line in rows] == list(matrix) and len(rows) == 73
    for line in rows:
        assert line.entry.published.model_dump() == {name: matrix[line.entry.id][name] for name in words.PUBLISHED}
        assert line.entry.family == matrix[line.entry.id]["family"]


def test_models_of_ones_own_come_first_and_have_blank_cells(home_with_catalog: Workspace) -> None:
    first = catalog.listing(home_with_catalog, CatalogFilter())[:2]
    assert [line.entry.id for line in first] == bundled.ids() and {line.entry.origin for line in first} == {"starter"}
    assert all(set(line.entry.published.model_dump().values()) == {""} for line in first)


def test_reference_models_are_known_but_not_listed(home_with_catalog: Workspace) -> None:
    listed = ids(home_with_catalog)
    assert len(listed) == 75 and "meta-llama/Llama-3.1-405B" not in listed
    assert catalog.show(home_with_catalog, "meta-llama/llama-3.1-405b").origin == "reference"


def test_the_family_of_a_type_is_the_pages() -> None:
    families = {model.model_type: model.family for model in published.published().values()}
    assert families == words.FAMILIES


def test_a_sync_without_a_change_writes_nothing(home_with_catalog: Workspace) -> None:
    before = (home_with_catalog.settings.home / "whetstone.db-wal").stat()
    catalog_sync.sync(home_with_catalog)
    after = (home_with_catalog.settings.home / "whetstone.db-wal").stat()
    assert (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)


def edit(path: Path, folder: Path, change: Callable[[str], str]) -> Path:
    edited = folder / path.name
    edited.write_text(change(path.read_text()))
    return edited


@pytest.mark.process
def test_an_edited_file_is_taken_over_and_the_folder_of_ones_own_stays(
    tmp_path: Path, starter_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_home(tmp_path / "home")
    shutil.copytree(starter_draft, tmp_path / "mine")
    models.remember(opened, str(tmp_path / "mine"))
    assert "Falcon Forty" not in {catalog.show(opened, name).model.display_name for name in published.published()}  # type: ignore[attr-defined]
    edited = edit(published.MODELS, tmp_path, lambda text: text.replace('"Falcon 40B"', '"Falcon Forty"'))
    monkeypatch.setattr(published, "MODELS", edited)
    assert [line.entry.id for line in catalog.listing(opened, CatalogFilter(words="forty"))] == [
        "huggingface-llm-falcon-40b-bf16"
    ]
    assert ids(opened, origins=("imported",)) == ["mine"] and len(ids(opened)) == 76


WRONG: list[tuple[Callable[[str], str], str]] = [
    (lambda text: text.replace("falcon-40b-instruct-bf16", "falcon-40b-bf16"), "two rows with jumpstart_id"),
    (
        lambda text: text.replace("num_hidden_layers = 60", 'num_hidden_layers = "sixty"', 1),
        "`num_hidden_layers` is wrong",
    ),
    (lambda text: text.replace("\n[[models]]\n", "\n[[models\n", 1), "not valid TOML"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_file_edited_wrongly_is_one_sentence_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str], message: str
) -> None:
    opened = open_home(tmp_path / "home")
    catalog_sync.sync(opened)
    before = state(opened)
    monkeypatch.setattr(published, "MODELS", edit(published.MODELS, tmp_path, change))
    with pytest.raises(InvalidCatalog, match=message):
        catalog.listing(opened, CatalogFilter())
    sentence = catalog.refresh(opened)
    assert sentence is not None and message.replace("`", "") in sentence.replace("`", "") and "\n" not in sentence
    assert state(opened) == before and catalog.count(opened, CatalogFilter()) == 75
    assert catalog.show(opened, "meta-textgeneration-llama-3-70b").origin == "published"


def test_a_missing_file_in_a_new_home_leaves_what_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_home(tmp_path / "home")
    monkeypatch.setattr(published, "MATRIX", tmp_path / "none.csv")
    assert "cannot be read" in (catalog.refresh(opened) or "") and state(opened) is None
    assert models.resolve_facts(opened, "starter").origin == "starter"
    with pytest.raises(InvalidCatalog, match="cannot be read"):
        models.resolve_facts(opened, "meta-textgeneration-llama-3-70b")


SYNC = """
import sys
from tests.homes import open_home
from pathlib import Path
from backend.service.models import catalog_sync
opened = open_home(Path(sys.argv[1]))
sys.stdin.readline()
catalog_sync.sync(opened)
print(catalog_sync.check_fits(opened, "ml.g5.12xlarge"))
"""


@pytest.mark.process
def test_two_processes_may_fill_a_new_home_at_once(tmp_path: Path) -> None:
    opened = open_home(tmp_path)
    command = [sys.executable, "-c", SYNC, str(tmp_path)]
    started = [
        subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for child in started:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    assert [child.communicate()[0].strip() for child in started] == [G5, G5]
    assert [child.returncode for child in started] == [0, 0] and len(ids(opened)) == 75
    assert "meta-textgeneration-llama-3-70b" in ids(opened, target=G5, techniques=("awq",))


def test_a_home_with_imports_and_artifacts_from_before_has_them_in_the_catalog(
    tmp_path: Path, starter_draft: Path
) -> None:
    opened = open_home(tmp_path / "home")
    shutil.copytree(starter_draft, tmp_path / "mine")
    models.remember(opened, str(tmp_path / "mine"))
    job = studio.optimize_job(opened, JobState.SUCCEEDED)
    card = studio.optimize_spec(opened).model.model_copy(
        update={"id": "used", "origin": "folder", "path": "/nowhere/used"}
    )
    studio.artifact(opened, job, card)
    with opened.store.session() as session:  # as a database of an earlier version has it
        table.remove(session, str(tmp_path / "mine"))
        table.remove(session, "/nowhere/used")
    assert ids(opened)[2:4] == ["used", "mine"]


def test_a_folder_that_was_used_stays_as_long_as_an_artifact_of_it_does(tmp_path: Path) -> None:
    opened = open_home(tmp_path)
    card = studio.optimize_spec(opened).model.model_copy(
        update={"id": "used", "origin": "folder", "path": "/nowhere/used"}
    )
    artifact_id = studio.artifact(opened, studio.optimize_job(opened, JobState.SUCCEEDED), card)
    rows = catalog.listing(opened, CatalogFilter(origins=("folder",)))
    assert [(line.entry.id, line.entry.present) for line in rows] == [("used", False)]
    artifacts.delete(opened, artifact_id)
    assert ids(opened, origins=("folder",)) == []


def test_what_is_forgotten_leaves_the_catalog(tmp_path: Path, starter_draft: Path) -> None:
    opened = open_home(tmp_path / "home")
    shutil.copytree(starter_draft, tmp_path / "mine")
    models.remember(opened, str(tmp_path / "mine"))
    models.remember(opened, str(tmp_path / "mine"))
    assert ids(opened, origins=("imported",)) == ["mine"]
    models.forget(opened, str(tmp_path / "mine"))
    assert ids(opened, origins=("imported", "folder")) == []
    with pytest.raises(NotFound):
        models.forget(opened, str(tmp_path / "mine"))


def test_a_demonstration_has_the_catalog_although_it_is_read_only(tmp_path: Path) -> None:
    shown = demo_export.seed(tmp_path / "shown")
    assert shown.read_only and len(ids(shown, origins=("published",))) == 73
    assert len(ids(shown, target=G5, techniques=("awq",))) > 10


@pytest.mark.parametrize("target", [G5, "sagemaker:ml.g5.12xlarge", "ml.inf2.48xlarge", "accelerator:rtx4090"])
def test_what_fits_is_what_the_rules_say_of_each_model(home_with_catalog: Workspace, target: str) -> None:
    where, steps = targets.find(home_with_catalog, target), words.technique_recipes()
    for kind in (words.ORIGINAL_KIND, "awq", "draft"):
        fitting = ids(home_with_catalog, target=target, techniques=() if kind == words.ORIGINAL_KIND else (kind,))
        for line in catalog.listing(home_with_catalog, CatalogFilter()):
            model = line.entry.model
            facts = targets.rule_facts(where, model, catalog_sync.find_draft(home_with_catalog, model))
            recipe = with_dividing_group(model, steps[kind])
            assert (line.entry.id in fitting) == compat.check_recipe(model, recipe, facts, suggest=False).valid, (
                kind,
                line.entry.id,
            )


def test_awq_on_four_a10g_answers_with_those_that_fit(home_with_catalog: Workspace) -> None:
    identifiers = ids(home_with_catalog, target=G5, techniques=("awq",), origins=("published",))
    assert "meta-textgeneration-llama-3-70b" in identifiers and "meta-textgeneration-llama-2-7b" in identifiers
    assert (
        "huggingface-llm-falcon-180b-bf16" not in identifiers
        and "huggingface-llm-mistral-7b-openorca-gptq" not in identifiers
    )
    assert "meta-textgeneration-llama-3-70b" not in ids(home_with_catalog, target="ml.g5.xlarge", techniques=("awq",))


def test_on_this_machine_its_memory_counts(home_with_catalog: Workspace) -> None:
    fits = ids(home_with_catalog, target="local")
    assert "starter" in fits and "huggingface-llm-falcon-180b-bf16" not in fits  # 360 GB
    line = catalog.listing(home_with_catalog, CatalogFilter(words="llama-3-70b-instruct"))[0]
    assert not line.fits and any("does not fit" in reason for check in line.checks for reason in check.reasons)


@pytest.fixture(scope="module")
def entries(home_with_catalog: Workspace) -> list[catalog.CatalogEntry]:
    return [line.entry for line in catalog.listing(home_with_catalog, CatalogFilter())]


NUMBERS = st.one_of(st.none(), st.integers(0, 200_000_000_000))


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    origins=st.lists(st.sampled_from(words.LISTED), max_size=2),
    cells=st.lists(st.sampled_from(words.PUBLISHED), max_size=2),
    families=st.lists(st.sampled_from(sorted(words.FAMILIES.values())), max_size=3),
    text=st.sampled_from(["", "LLAMA 7b", "70b %", "_"]),
    low=NUMBERS,
    high=NUMBERS,
    context=st.sampled_from([None, 2048, 4096, 32768]),
)
def test_the_store_narrows_as_the_columns_say(
    home_with_catalog: Workspace,
    entries: list[catalog.CatalogEntry],
    origins: list[str],
    cells: list[str],
    families: list[str],
    text: str,
    low: int | None,
    high: int | None,
    context: int | None,
) -> None:
    if low is not None and high is not None and low > high:
        low, high = high, low
    catalog_filter = CatalogFilter.model_validate(
        {
            "origins": origins,
            "techniques": cells,
            "families": families,
            "words": text,
            "min_parameters": low,
            "max_parameters": high,
            "min_context": context,
        }
    )
    expected = [entry.id for entry in entries if holds(entry, catalog_filter)]
    with home_with_catalog.store.read() as session:
        assert [row.name for row in table.list_rows(session, catalog_filter, "", limit=None)] == expected
    assert catalog.count(home_with_catalog, catalog_filter) == len(expected)


def holds(entry: catalog.CatalogEntry, catalog_filter: CatalogFilter) -> bool:
    model = entry.model
    text = f"{entry.id} {model.architecture} {model.model_type} {entry.family} "
    if isinstance(model, PublishedModel):
        text += f"{model.display_name} {model.provider} {model.hf_repo}"
    elif isinstance(model, ModelCard):
        text += model.path
    cells = entry.published.model_dump()
    return (
        (not catalog_filter.origins or entry.origin in catalog_filter.origins)
        and all(cells[name] == "Yes" for name in catalog_filter.techniques)
        and (not catalog_filter.families or entry.family in catalog_filter.families)
        and all(word in text.casefold() for word in catalog_filter.words.casefold().split())
        and (catalog_filter.min_parameters or 0)
        <= model.parameters
        <= (10**15 if catalog_filter.max_parameters is None else catalog_filter.max_parameters)
        and model.max_positions >= (catalog_filter.min_context or 0)
    )


@pytest.mark.parametrize("sort", get_args(CatalogOrder))
@pytest.mark.parametrize("descending", [False, True])
def test_every_order_has_every_model_once_and_pages_without_a_gap(
    home_with_catalog: Workspace, sort: CatalogOrder, descending: bool
) -> None:
    catalog_filter = CatalogFilter(sort=sort, descending=descending)
    whole = catalog.listing(home_with_catalog, catalog_filter)
    paged = [line for number in (1, 2, 3, 4) for line in catalog.page(home_with_catalog, catalog_filter, number)]
    assert [line.entry.id for line in paged] == [line.entry.id for line in whole] and len(
        {line.entry.id for line in whole}
    ) == 75
    assert catalog.page(home_with_catalog, catalog_filter, 5) == []
    if sort in {"parameters", "context"}:
        values = [
            getattr(line.entry.model, {"parameters": "parameters", "context": "max_positions"}[sort]) for line in whole
        ]
        assert values == sorted(values, reverse=descending)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"techniques": ("awk",)}, "no technique `awk`: the nearest is `awq`"),
        ({"families": ("lama",)}, "`LLaMA`"),
        ({"licences": ("apache",)}, "`apache-2.0`"),
        ({"origins": ("reference",)}, "no origin `reference`"),
        ({"sort": "size"}, "no order `size`"),
        ({"min_parameters": 7, "max_parameters": 1}, "exchange them"),
        ({"min_context": -1}, "Min context is wrong: it must be at least 0"),
        ({"target": "auto"}, "name an instance"),
    ],
)
def test_an_unknown_filter_is_one_sentence_with_the_nearest_names(
    home_with_catalog: Workspace, values: dict[str, object], message: str
) -> None:
    with pytest.raises(UnknownFilter) as error:
        catalog.listing(home_with_catalog, catalog.make_filter(home_with_catalog, **values))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_an_unknown_instance_is_one_sentence_with_the_nearest_names(home_with_catalog: Workspace) -> None:
    with pytest.raises(InvalidRecipe, match=r"ml\.g5\.12xlarge"):
        catalog.count(home_with_catalog, CatalogFilter(target="ml.g5.13xlarge"))


def test_families_and_licences_are_found_in_any_case(home_with_catalog: Workspace) -> None:
    assert (
        len(
            catalog.listing(
                home_with_catalog, catalog.make_filter(home_with_catalog, families=("llama",), licences=("LLAMA2",))
            )
        )
        == 19
    )


def test_models_of_one_shape_fit_alike_and_other_shapes_are_told_apart() -> None:
    publication = published.published()
    shapes = {name: words.facts_hash(model) for name, model in publication.items()}
    assert shapes["meta-textgeneration-llama-3-8b"] == shapes["meta-textgeneration-llama-3-8b-instruct"]
    model = publication["meta-textgeneration-llama-3-8b"]
    for change in (
        {"heads": 16},
        {"parameters": 1},
        {"quantization": "awq"},
        {"generates": False},
        {"max_positions": 1},
    ):
        assert words.facts_hash(model.model_copy(update=change)) != words.facts_hash(model)
    assert words.facts_hash(model, publication["meta-textgeneration-llama-3-70b"]) != words.facts_hash(model)


def test_other_rules_make_the_fits_anew(home_with_catalog: Workspace) -> None:
    """The very same, so that the home of all tests is what it was."""
    before = ids(home_with_catalog, target=G5, techniques=("awq",))
    with home_with_catalog.store.session() as session:
        sync_state.set_version(session, "planner", "an earlier version's")
    with home_with_catalog.store.session() as session:
        table.remove_fits(session)
    assert ids(home_with_catalog, target=G5, techniques=("awq",)) == before != []


def test_a_locked_database_is_told_where_the_catalog_was_never_filled(tmp_path: Path) -> None:
    opened = open_home(tmp_path)
    other = service.open_workspace(opened.settings, patience_s=0.1)
    with opened.store.session() as session:
        sync_state.set_version(session, "planner", "held")
        session.flush()  # from here on nobody else may write
        assert "locked" in (catalog.refresh(other) or "") and catalog.count(other, CatalogFilter()) == 0
        with pytest.raises(StoreUnavailable):
            catalog.listing(other, CatalogFilter())
    assert catalog.refresh(other) is None and catalog.count(other, CatalogFilter()) == 75


@pytest.mark.process
def test_the_rules_that_are_hashed_are_all_that_a_check_imports() -> None:
    loaded = (
        "import sys, backend.domain.rules.check; "
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('backend.domain')))"
    )
    done = subprocess.run([sys.executable, "-c", loaded], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    paths = {Path(path) for path in done.stdout.split() if not path.endswith("__init__.py")}
    assert paths == set(catalog_sync.domain_sources("backend.domain.rules.check")) and len(paths) > 20
