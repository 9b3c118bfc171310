"""`whetstone presets ...` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.service.plans import recipe_files
from tests.integration.cli.calling import one_sentence, whetstone


def test_list_show_and_apply(tmp_path: Path) -> None:
    done = whetstone(tmp_path, "presets", "list", "--model", "meta-textgeneration-llama-3-70b", "--json")
    parsed = json.loads(done.stdout)
    assert [preset["goal"] for preset in parsed] == ["lower-cost", "lower-latency", "balanced", "highest-quality"]
    latency = parsed[1]
    assert latency["target"] == "ml.p5.48xlarge" and latency["measured"] == []
    assert (latency["published"][0]["value"], latency["published"][0]["against"]) == (2400, 1200)
    assert [level["load"]["concurrency"] for level in latency["estimated"]["levels"]] == [1, 4, 16, 64]
    shown = whetstone(tmp_path, "presets", "show", "llama-3-70b-instruct/lower-cost").stdout
    assert shown.index("Estimated by formula") < shown.index("Published by others") < shown.index("Measured:")
    assert "79.88 %" in shown and "At today's prices" in shown
    output = tmp_path / "recipe.yaml"
    done = whetstone(tmp_path, "presets", "apply", "starter/lower-cost", "--output", str(output))
    assert done.returncode == 0 and "--model starter --target local" in done.stdout
    assert recipe_files.read_file(output).name == "w8a8"


def test_a_rate_is_planned_for_as_on_the_pages(tmp_path: Path) -> None:
    listed = whetstone(tmp_path, "presets", "list", "--model", "meta-textgeneration-llama-3-8b", "--rate", "20")
    assert (
        "9 x ml.g6.xlarge" in listed.stdout
        and "Estimates are for 622 tokens in, 250 out, 20 requests/s." in listed.stdout
    )
    estimate = ("recipe", "estimate", "awq", "--model", "starter", "--target", "ml.g5.xlarge", "--rate", "4000")
    text = whetstone(tmp_path, *estimate).stdout
    assert "4,000 requests/s, " in text and "22 instances carry 4,000 requests/s, for 30.98 USD per hour." in text
    assert "give one of them" in one_sentence(whetstone(tmp_path, *estimate, "--concurrency", "2"))


def test_a_preset_that_is_not_valid_there_exits_2_with_the_nearest(tmp_path: Path) -> None:
    requests = ("presets", "apply", "llama-3-70b/lower-cost", "--model", "starter", "--target", "local")
    assert "The nearest valid recipe: quantize awq; tensor parallel degree 1" in one_sentence(
        whetstone(tmp_path, *requests)
    )
    document = json.loads(whetstone(tmp_path, *requests, "--json").stdout)
    assert (
        document["valid"] is False and document["reasons"] and document["suggestion"]["serving"]["tensor_parallel"] == 1
    )


def test_save_export_import_and_remove(tmp_path: Path) -> None:
    first, second, file = tmp_path / "one", tmp_path / "two", tmp_path / "presets.yaml"
    saved = ("presets", "save", "mine/fast", "--recipe", "awq", "--model", "starter", "--goal", "lower-cost")
    assert whetstone(first, *saved).returncode == 0
    done = whetstone(first, "presets", "export", "mine/fast", "llama-3-8b/balanced", "--output", str(file))
    assert done.returncode == 0
    parsed = json.loads(whetstone(second, "presets", "import", str(file), "--json").stdout)
    assert [row["outcome"] for row in parsed] == ["new", "unchanged"]
    origins = {row["id"]: row["origin"] for row in json.loads(whetstone(second, "presets", "list", "--json").stdout)}
    assert origins["mine/fast"] == "imported" and len(origins) == 48
    assert whetstone(second, "presets", "remove", "mine/fast").returncode == 0
    assert whetstone(second, "presets", "show", "mine/fast").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "llama-3-70b/lowest-cost"), "the nearest are `llama-3-70b/lower-cost`"),
        (("list", "--goal", "fame"), "--goal is wrong"),
        (("list", "--origin", "mars"), "--origin is wrong: it is one of bundled, imported, own"),
        (("apply", "llama-3-8b/balanced", "--target", "ml.g5.13xlarge"), "There is no target `ml.g5.13xlarge`"),
        (("import", "nosuch.yaml"), "cannot be read"),
        (("export", "--output", "/nosuch/folder/file.yaml"), "cannot be written"),
        (("remove", "llama-3-8b/balanced"), "comes with Whetstone and stays"),
    ],
)
def test_a_wrong_request_is_one_sentence(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    assert message in one_sentence(whetstone(tmp_path, "presets", *arguments))
