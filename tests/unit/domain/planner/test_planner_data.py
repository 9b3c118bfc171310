"""The bundled data: exactly the published page, typed, and one sentence naming the row where a hand went wrong."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from backend.catalog.bundled import instances, published
from backend.domain.errors import InvalidCatalog, InvalidRecipe
from backend.domain.machine import targets
from backend.domain.recipe.capability_table import NATIVE_FAMILIES
from backend.layered.families import FAMILIES


def test_the_73_models_carry_the_published_cells_as_they_are() -> None:
    with published.MATRIX.open() as file:
        matrix = {row["jumpstart_model_id"]: row for row in csv.DictReader(file)}
    publication = published.published()
    assert len(publication) == 73 and list(publication) == list(matrix)
    for name, model in publication.items():
        assert model.published is not None
        assert model.published.model_dump() == {field: matrix[name][field] for field in model.published.model_dump()}


def test_eleven_are_preoptimized_and_eight_precompiled() -> None:
    result = published.published().values()
    assert sum(model.preoptimized for model in result) == 11 and sum(model.precompiled for model in result) == 8


def test_a_model_is_found_by_its_id_or_its_hub_id_in_any_case() -> None:
    assert published.find("META-textgeneration-llama-3-70b") == published.find("meta-llama/Meta-Llama-3-70B")
    assert published.find("nosuch") is None


def test_the_table_of_families_is_the_engines() -> None:
    assert set(FAMILIES) == NATIVE_FAMILIES


def test_every_instance_has_its_accelerator_and_every_price_its_source() -> None:
    loaded = instances.load()
    assert len(loaded.instances) == 45 and len(loaded.accelerators) == 15
    for instance in loaded.instances.values():
        device = loaded.device(instance)
        assert device.units == instance.accelerator_count * (
            loaded.accelerators[instance.accelerator].neuron_cores or 1
        )
        assert (instance.sagemaker_usd_per_hour is None) == (instance.price_source is None)


EDITS = [
    (instances.PATH, 'name = "L4"', 'name = "T4"', "two rows with name `T4`"),
    (
        instances.PATH,
        "accelerator_count = 4",
        'accelerator_count = "four"',
        "row `ml.g4dn.12xlarge`: `accelerator_count`",
    ),
    (instances.PATH, "accelerator_count = 4", "accelerators = 4", "row `ml.g4dn.12xlarge`: `accelerator"),
    (instances.PATH, 'accelerator = "T4"', 'accelerator = "T5"', "no accelerator `T5`"),
    (instances.PATH, "0.7364\nprice_source = ", "0.7364\nnote = ", "row `ml.g4dn.xlarge`: `note` is unknown"),
    (
        instances.PATH,
        '"fmbench"\nprice_region',
        '"hearsay"\nprice_region',
        "`ml.g4dn.4xlarge`: its price has no source",
    ),
    (instances.PATH, "[sources]", "[sources", "not valid TOML"),
    (published.MODELS, "num_hidden_layers = 60", "num_hidden_layers = -1", "-40b-bf16`: `num_hidden_layers`"),
    (published.MODELS, 'jumpstart_id = "huggingface-llm-falcon-40b-bf16"', 'jumpstart_id = "other"', "row `other`"),
    (
        published.MODELS,
        'jumpstart_id = "huggingface-llm-falcon-40b-instruct-bf16"',
        'jumpstart_id = "huggingface-llm-falcon-40b-bf16"',
        "two rows with jumpstart_id `huggingface-llm-falcon-40b-bf16`",
    ),
]


@pytest.mark.parametrize(("path", "before", "after", "message"), EDITS, ids=[edit[3] for edit in EDITS])
def test_a_wrong_edit_is_one_sentence_that_names_the_row(
    path: Path, before: str, after: str, message: str, tmp_path: Path
) -> None:
    text = path.read_text()
    assert before in text
    edited = tmp_path / path.name
    edited.write_text(text.replace(before, after, 1))
    with pytest.raises(InvalidCatalog) as error:
        instances.load(edited) if path == instances.PATH else published.published(edited)
    assert message in str(error.value) and "\n" not in str(error.value) and path.name in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Falcon,huggingface-llm-falcon-7b-bf16,Maybe,Yes,No\n", "neither Yes, No nor blank"),
        ("Falcon,,Yes,Yes,No\n", "missing"),
    ],
)
def test_a_wrong_cell_of_the_matrix_is_named(line: str, message: str, tmp_path: Path) -> None:
    edited = tmp_path / "matrix.csv"
    edited.write_text(published.MATRIX.read_text().splitlines(keepends=True)[0] + line)
    with pytest.raises(InvalidCatalog, match=message):
        published.published(published.MODELS, edited)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidCatalog, match="cannot be read"):
        instances.load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("ml.g5.13xlarge", "ml.g5.12xlarge"),
        ("accelerator:4090", "accelerator:rtx4090"),
        ("locl", "local"),
        ("sagemaker:ml.g5.12xlarg", "sagemaker:ml.g5.12xlarge"),
        ("", "auto"),
        ("ml.p5.48xlarge " * 50, "auto"),
        ("local:gpu", "local:gpu0"),
        ("accelerator:", "accelerator:"),
        ("sagemaker:auto", "sagemaker:"),
    ],
)
def test_an_unknown_target_is_refused_with_the_nearest_names(name: str, nearest: str) -> None:
    with pytest.raises(InvalidRecipe) as error:
        instances.load().find(name)
    assert nearest in str(error.value).split("nearest are")[1] and "\n" not in str(error.value)


def test_every_name_that_is_offered_is_a_target() -> None:
    loaded = instances.load()
    local = {"auto", *targets.LOCAL}
    assert all((loaded.find(name) is None) == (name in local) for name in loaded.names())
    assert targets.gpu_numbers("local:gpu0,1") == (0, 1) and targets.gpu_numbers("local:gpu") is None
