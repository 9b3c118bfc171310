"""The parts of a job's page that differ by its kind, one row each: the next step, the form to change it, its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import streamlit as st

from app import charts, navigation, next_steps, shell, url_parameters
from app.drafts import payoff_panel
from app.formatting import message, plain, strong
from app.jobs import precision, recovery_panel, sagemaker_panel, structure_panel, training_panel
from app.overview import tiles
from app.summaries import model_source, provenance, verdicts
from backend.domain.errors import NotFound
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.artifact import Manifest
from backend.domain.jobs.jobs import JobKind, JobState
from backend.domain.jobs.kinds import KINDS
from backend.domain.model.facts import ModelCard
from backend.domain.recipe.recipe import Recipe, Speculate
from backend.present.charts.layer_errors import layer_errors
from backend.present.variant_tiles import variant_tiles
from backend.present.words import headline, layer_summary, load_search, quality_loss
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import artifacts, jobs
from backend.service.jobs.jobs import JobView
from backend.service.plans import recipe_files
from backend.service.serving import serve

SpecificationJson = dict[str, Any]


class NextStep(NamedTuple):
    """The next step after a job: a button, and the page that it opens."""

    label: str
    icon: str
    page: str
    params: dict[str, str]


class KindView(NamedTuple):
    """The parts of a job's page that differ by kind; each takes the workspace, the job and its specification. None:
    there is no such part."""

    watch: Callable[[Workspace, JobView, SpecificationJson], NextStep | None] | None = None
    """The next step while the job has not ended."""
    follow: Callable[[Workspace, JobView, SpecificationJson], NextStep | None] | None = None
    """The next step after it has succeeded."""
    change: Callable[[Workspace, JobView, SpecificationJson], None] | None = None
    """Draws the link to the form that can submit such a job, with its fields filled in."""
    show: Callable[[Workspace, JobView, SpecificationJson], None] | None = None
    """Draws what came of it, or what it does now."""


def find_next_step(opened: Workspace, job: JobView, specification: SpecificationJson) -> NextStep | None:
    """Return the step after a job that runs or has succeeded; None if there is nothing beyond this page."""
    view = KIND_VIEWS[job.kind]
    if not job.ended:
        return view.watch(opened, job, specification) if view.watch else None
    if job.state is JobState.SUCCEEDED and view.follow:
        return view.follow(opened, job, specification)
    return None


def show_change_link(opened: Workspace, job: JobView, specification: SpecificationJson) -> None:
    """Draw the link to the form with the request of this job filled in."""
    change = KIND_VIEWS[job.kind].change
    if change is not None:
        change(opened, job, specification)


def show_result(opened: Workspace, job: JobView, specification: SpecificationJson) -> None:
    """Draw what came of the job, or what it does now."""
    show = KIND_VIEWS[job.kind].show
    if show is not None:
        show(opened, job, specification)


def _model_name(specification: SpecificationJson) -> str:
    """Return the model as an address names it. A job at AWS has the card as `parent`, if the model is here."""
    card = specification.get("parent", specification["model"])
    return model_source(ModelCard.model_validate(card)) if card else str(specification["model"])


def _evaluate_artifact(opened: Workspace, job: JobView, specification: SpecificationJson) -> NextStep | None:
    if "artifact" not in job.result:
        return None
    pair = navigation.join_values(_model_name(specification), str(job.result["artifact"]))
    return NextStep("Evaluate against the original", ":material/speed:", "evaluate", {"variants": pair})


def _change_recipe(opened: Workspace, job: JobView, specification: SpecificationJson) -> None:
    text = recipe_files.write_text(Recipe.model_validate(specification["recipe"]))
    place = {"target": specification["target"]} if KINDS[job.kind].at_aws else {}
    model = _model_name(specification)
    navigation.link("build", "Change the recipe", ":material/construction:", model=model, recipe=text, **place)


def _show_optimized(opened: Workspace, job: JobView, specification: SpecificationJson) -> None:
    if job.state is JobState.SUCCEEDED:
        _show_artifact(opened, job)
        recovery_panel.panel(opened, job, specification)


def _show_managed(opened: Workspace, job: JobView, specification: SpecificationJson) -> None:
    """Draw the job at AWS, then the artifact if one was fetched."""
    if job.state is JobState.QUEUED:
        return
    shell.live("managed", lambda: sagemaker_panel.panel(opened, job.id), active=not job.ended)
    if job.state is JobState.SUCCEEDED:
        sagemaker_panel.show_result(job, specification)
        if "artifact" in job.result:
            _show_artifact(opened, job)


def _show_artifact(opened: Workspace, job: JobView) -> None:
    """Show quality and the error of each linear."""
    # 1. Quality.
    quality = job.result.get("quality") or {}
    if ruined := quality.get("below_floor"):
        st.error(message(ruined), icon=":material/warning:")
    if sentence := quality_loss.manifest_words(quality):
        st.caption(
            f"{sentence[:1].upper()}{sentence[1:]}. "
            f"Scored on the held-out text “{plain(quality.get('text') or 'code')}”.",
            help=message(quality_loss.scale_sentence()),
        )
    # 2. The artifact and its next steps.
    try:
        artifact = artifacts.show(opened, str(job.result.get("artifact")))
    except NotFound:
        st.info("The artifact of this job has been deleted.", icon=":material/delete:")
        return
    where = "its files are not part of this demonstration" if opened.read_only else f"in {plain(artifact.path)}"
    scored = "quality measured on held-out text while it was made" if quality else "its quality is not measured yet"
    st.caption(f"Artifact `{artifact.id}`, {where}; {scored}.")
    original = model_source(artifact.manifest.parent)
    next_steps.show(opened, [artifact.id], baseline=original, primary=False, evaluates=False)
    # 3. Precision and layers.
    precision.show(artifact.manifest.bits)
    structure_panel.panel(artifact.manifest.structure)
    if artifact.manifest.layers:
        _layers(artifact.manifest)


def _layers(manifest: Manifest) -> None:
    """Show the layers that lose most, as a chart and in words."""
    if verbs := layer_summary.done(manifest.recipe):
        charts.show(layer_errors(manifest.layers, charts.theme(), verbs), "layer-errors")
    for sentence in layer_summary.sentences(manifest.recipe, manifest.layers, manifest.kept_16bit):
        st.markdown(f"- {message(sentence)}")


def _build_with_trained(opened: Workspace, job: JobView, specification: SpecificationJson) -> NextStep:
    model = ModelCard.model_validate(specification["model"])
    parameters = {"model": model_source(model), "recipe": training_panel.draft_recipe(opened, job, model)}
    return NextStep("Build with this draft", ":material/construction:", "build", parameters)


def _change_training(opened: Workspace, job: JobView, specification: SpecificationJson) -> None:
    form = training_panel.repeat_parameters(specification["options"])
    model = _model_name(specification)
    navigation.link("train", "Change what is trained", ":material/model_training:", model=model, **form)


def _show_training(opened: Workspace, job: JobView, specification: SpecificationJson) -> None:
    if job.state is not JobState.QUEUED:
        training_panel.panel(opened, job, specification)


def _watch_charts(opened: Workspace, job: JobView, specification: SpecificationJson) -> NextStep:
    return NextStep("Live charts", ":material/monitoring:", "evaluate", {"job": job.id})


def _open_evaluation(opened: Workspace, job: JobView, specification: SpecificationJson) -> NextStep:
    return NextStep(
        "Charts, table and report", ":material/speed:", "evaluate", {"id": str(job.result.get("evaluation"))}
    )


def _change_evaluation(opened: Workspace, job: JobView, specification: SpecificationJson) -> None:
    """Draw the link to the form. A variant that an earlier job was to make is named by its artifact, if there is
    one."""
    artifact = jobs.show(opened, job.after).result.get("artifact") if job.after else None
    requested = [str(variant["source"]) for variant in specification["variants"]]
    sources = [
        str(artifact) if source == job.after else source for source in requested if artifact or source != job.after
    ]
    navigation.link("evaluate", "Change what is measured", ":material/tune:", variants=navigation.join_values(*sources))


def _show_evaluation(opened: Workspace, job: JobView, specification: SpecificationJson) -> None:
    """Show the verdicts, and where they were measured."""
    if job.state is not JobState.SUCCEEDED:
        return
    # 1. Find the evaluation.
    try:
        view = evaluations.show(opened, str(job.result.get("evaluation")))
    except NotFound:
        st.info("The evaluation of this job has been deleted.", icon=":material/delete:")
        return
    # 2. Show its verdict and tiles, every verdict folded, and where they were measured.
    if not load_search.is_search(view.document):
        st.markdown(strong(headline.short_sentence(view.document)))
        tiles.show(variant_tiles(view.document))
    with st.expander("Full verdicts, with every latency", icon=":material/balance:"):
        st.markdown("\n".join(f"- {message(sentence)}" for sentence in verdicts(view.document)))
    st.caption(plain(provenance(view)))
    navigation.link("compare", "Compare", ":material/compare_arrows:", ids=view.id)
    # 3. Offer what can be done with variants that are here.
    own_sources = [result.variant.source for result in view.document.variants if result.variant.kind != "url"]
    ours = list(dict.fromkeys(own_sources))
    if ours:
        next_steps.show(opened, ours, baseline=ours[0], evaluation=view.id, primary=False)


def _open_playground(opened: Workspace, job: JobView, specification: SpecificationJson) -> NextStep:
    parameters = url_parameters.playground_parameters(serve.served_sources(opened, job.id))
    return NextStep("Open Playground", ":material/chat:", "playground", parameters)


def _change_servers(opened: Workspace, job: JobView, specification: SpecificationJson) -> None:
    pair = url_parameters.playground_parameters(serve.served_sources(opened, job.id))
    navigation.link("playground", "Playground", ":material/chat:", **pair)


def _show_servers(opened: Workspace, job: JobView, specification: SpecificationJson) -> None:
    if not job.ended:
        shell.live("serves", lambda: _show_clients(opened, job.id), active=True)
    elif job.state is JobState.SUCCEEDED:
        st.info(message(str(job.result.get("summary"))), icon=":material/stop_circle:")


def _show_clients(opened: Workspace, job_id: str) -> str:
    """Show how to send requests to the servers of a serve job. Return how many are ready."""
    servers = serve.endpoints(opened, job_id)
    next_steps.show_clients(opened, servers)
    return str(len(servers))


def _build_with_draft(opened: Workspace, job: JobView, specification: SpecificationJson) -> NextStep:
    return NextStep("Build with a draft", ":material/construction:", "build", _speculating(specification))


def _speculating(specification: SpecificationJson) -> dict[str, str]:
    """Return the address parameters of Build: the model of a payoff map with a draft, under the map's settings."""
    target = Variant.model_validate(specification["variants"][0])
    recipe = Recipe(name="draft", steps=(Speculate(method="draft", draft="auto"),), serving=target.serving)
    return {
        "model": target.source if target.kind == "model" else str(target.original_path),
        "recipe": recipe_files.write_text(recipe),
    }


def _show_payoff(opened: Workspace, job: JobView, specification: SpecificationJson) -> None:
    if job.state is JobState.SUCCEEDED:
        payoff_panel.show_measured(job)


def _open_model(opened: Workspace, job: JobView, specification: SpecificationJson) -> NextStep:
    return NextStep("Open the model", ":material/deployed_code:", "model", {"id": str(job.result.get("path"))})


def _show_imported(opened: Workspace, job: JobView, specification: SpecificationJson) -> None:
    if job.state is JobState.SUCCEEDED:
        next_steps.show(opened, [str(job.result.get("path"))], primary=False)


def _open_engines(opened: Workspace, job: JobView, specification: SpecificationJson) -> NextStep:
    return NextStep("See the engines", ":material/memory:", "hardware", {})


def _open_endpoints(opened: Workspace, job: JobView, specification: SpecificationJson) -> NextStep:
    return NextStep("Open Endpoints", ":material/dns:", "endpoints", {})


KIND_VIEWS: Mapping[str, KindView] = {
    JobKind.OPTIMIZE: KindView(follow=_evaluate_artifact, change=_change_recipe, show=_show_optimized),
    JobKind.MANAGED: KindView(follow=_evaluate_artifact, change=_change_recipe, show=_show_managed),
    JobKind.TRAIN: KindView(follow=_build_with_trained, change=_change_training, show=_show_training),
    JobKind.SERVE: KindView(watch=_open_playground, change=_change_servers, show=_show_servers),
    JobKind.EVALUATE: KindView(
        watch=_watch_charts, follow=_open_evaluation, change=_change_evaluation, show=_show_evaluation
    ),
    JobKind.PAYOFF: KindView(follow=_build_with_draft, show=_show_payoff),
    JobKind.IMPORT: KindView(follow=_open_model, show=_show_imported),
    JobKind.INSTALL: KindView(follow=_open_engines),
    JobKind.ENDPOINT: KindView(watch=_open_endpoints),
}
