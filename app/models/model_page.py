"""The sections of a model's page: published and checked techniques, memory on each instance, history."""

from __future__ import annotations

import streamlit as st

from app import charts, navigation, shell
from app.formatting import message, plain
from app.load_bar import address, field_values
from app.models.catalog_filters import CELLS, HERE
from app.models.catalog_table import group_refusals
from app.models.model_rows import VS_LOWEST, instance_rows
from app.summaries import artifact_rows, provenance, verdicts
from backend.domain.figures import code
from backend.domain.model.facts import ModelCard, ModelFacts, PublishedModel
from backend.domain.planner.planned_load import fit_context
from backend.domain.recipe.recipe import ORIGINAL as ORIGINAL_RECIPE
from backend.present.charts import memory as charts_memory
from backend.present.source_names import recorded_names
from backend.present.words.engines import fit_figures
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import artifacts
from backend.service.models import catalog, technique_checks
from backend.service.models.catalog import CatalogEntry
from backend.service.models.technique_checks import TechniqueCheck
from backend.service.plans import auto_target, recipe_files, token_prices
from backend.service.plans.token_prices import ModelPrice

SHOWN = 20
EVALUATIONS = 5
ORIGINAL = "Original"
LONGEST_BAR = 3.0
"""The multiple of the lowest price whose bar fills the column; a higher one fills it too."""
INSTANCES = 5
"""Instances that are ranked."""
MANY_ALIKE = 4
"""From this number on, equal refusals are counted rather than named."""


def show_published(model: PublishedModel) -> None:
    """Show the badges and licence of a published model, and that it is not downloaded."""
    # Its names, and a badge for each mark of the page.
    st.caption(" · ".join(plain(part) for part in (model.id, model.hf_repo, model.provider, model.task)))
    with st.container(horizontal=True):
        if model.preoptimized:
            st.badge("Pre-optimized", icon=":material/bolt:", color="grey", help="Listed so on the documentation page.")
        if model.precompiled:
            st.badge(
                "Pre-compiled",
                icon=":material/memory:",
                color="grey",
                help="For Neuron, listed so on the documentation page.",
            )
        if model.gated:
            st.badge(
                "Gated",
                icon=":material/lock:",
                color="grey",
                help="Its owner must let you in before you can download it.",
            )
    # Say that it is not here, and what licence it has.
    gated = ", and its owner must grant access first" if model.gated else ""
    st.info(
        f"Not downloaded: this page shows published facts only. To run it, import {code(model.hf_repo)}. "
        f"Licence {plain(model.license)}{gated}.",
        icon=":material/cloud_off:",
    )


def find_price(opened: Workspace, model: ModelFacts, target: str | None) -> ModelPrice | None:
    """Return the price per million tokens on `target`, or the lowest one, at the planned load; None where unknown."""
    load = address.current()
    return token_prices.find_price(opened, model, target=target, expected_load=load.expected, goal=load.goal)


def show_price(model: ModelFacts, price: ModelPrice | None, target: str | None) -> None:
    """Show what the price per million tokens rests on: load, region and instance."""
    # The price with where it comes from, or why there is none; a model that embeds has none at all.
    load = address.current()
    if price is not None:
        other = "" if price.chosen else " Choose another instance below."
        where = f"{price.where[:1].upper()}{price.where[1:]}"
        st.caption(plain(f"{where}, not measured. Price: {price.note}.{other}"))
        if price.beyond:
            st.info(message(price.beyond), icon=":material/stacks:")
    elif model.generates:
        region = f" in {plain(load.region)}" if load.region else ""
        st.caption(
            f"No price per million tokens on {target or 'any instance'}: it does not run there, its price{region} "
            "or its speed is unknown, or it does not meet your latency limits."
        )


def show_instances(opened: Workspace, model: ModelFacts) -> None:
    """Draw the instances that serve the original, ranked by price per token at the planned load."""
    load = address.current()
    fitted = fit_context(load.expected, model.max_positions)
    estimates = auto_target.rank_instances(opened, model, ORIGINAL_RECIPE, fitted, load.goal)
    if estimates:
        st.dataframe(
            instance_rows(estimates[:INSTANCES], load.goal),
            hide_index=True,
            column_config={
                VS_LOWEST: st.column_config.ProgressColumn(
                    width=120, min_value=0.0, max_value=LONGEST_BAR, format="%.2fx", help="Price over the lowest."
                )
            },
            alt="Instances with the lowest price per token, estimated for your load",
        )


def show_techniques(opened: Workspace, entry: CatalogEntry) -> str | None:
    """Show the published cells beside our own checks with reasons. Return the instance that they are checked for."""
    # Check for this machine or for an instance.
    places, planned = [HERE, *catalog.instances(opened)], address.current().target
    begin = planned if planned in places else HERE
    field_values.follow_load("model_on", begin)
    target = st.selectbox(
        "Check for",
        places,
        places.index(begin),
        key="model_on",
        bind="query-params",
        width=260,
        help="An instance with our engines, or `sagemaker:` with the managed toolkit's rules.",
    )
    checks = technique_checks.check_all(opened, entry.model, "local" if target == HERE else target)
    # What the page says is beside it for published models only.
    left, right = st.columns([1, 2], gap="large") if isinstance(entry.model, PublishedModel) else (None, st.container())
    if left is not None:
        with left:
            st.markdown("**As published**")
            for name, cell in entry.published.model_dump().items():
                _published_cell(CELLS[name].removeprefix("Published: "), cell)
            st.caption("As the documentation page has it. A blank there is a blank here.")
    # What works, then what does not with its reasons.
    with right:
        st.markdown(f"**Compatibility on {target}**, checked from the architecture")
        working = [plain(check.title_with_options) for check in checks if check.works]
        if working:
            st.markdown(f":material/check_circle: **{', '.join(working)}** {'works' if len(working) == 1 else 'work'}")
        for alike in group_refusals(checks):
            _show_refused(alike)
    return None if target == HERE else target


def _published_cell(name: str, cell: str) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(name.capitalize(), width="stretch")
        if cell:
            st.badge(cell, color="grey")
        else:
            st.caption("blank", width="content")


def _show_refused(alike: list[TechniqueCheck]) -> None:
    """Show techniques that are refused for the same reason in one grey line, with the alternative."""
    first, titles = alike[0], ", ".join(plain(check.title) for check in alike)
    name = titles if len(alike) < MANY_ALIKE else f"{len(alike)} techniques"
    st.markdown(f":gray[:material/block: **{name}**] {' '.join(message(reason) for reason in first.reasons)}")
    nearest = _nearest_sentence([check.nearest for check in alike if check.nearest])
    which = f"{titles}. " if len(alike) >= MANY_ALIKE else ""
    st.caption(f"{which}{nearest}By {plain('; '.join(dict.fromkeys(first.sources)))}.")


def _nearest_sentence(alternatives: list[str]) -> str:
    """Return the closest alternatives; if they only differ by the place, the place once."""
    if not alternatives:
        return "No close alternative works there. "
    places = {steps.partition(" on ")[2] for steps in alternatives}
    place = places.pop() if len(alternatives) > 1 and len(places) == 1 else ""
    if place:
        return f"They work on {plain(place)}. "
    return f"Closest alternative: {' or '.join(dict.fromkeys(map(plain, alternatives)))}. "


def builder_parameters(opened: Workspace, model: ModelFacts) -> dict[str, str]:
    """Return the address parameters of Build: the target and the weights chosen here."""
    target, title = st.session_state.get("model_on"), st.session_state.get("model_weights")
    recipe = next((kind for kind, known in technique_checks.kind_titles().items() if known == title), None)
    place = "local" if target == HERE else target
    parameters = {"target": place} if place and place != (address.current().target or "local") else {}
    return parameters | ({"recipe": recipe} if recipe in recipe_files.bundled_names() else {})


def show_memory(opened: Workspace, entry: CatalogEntry) -> None:
    """Draw bars of one accelerator's memory, for the original and each possible quantization."""
    # 1. Choose the weights.
    kinds, title = {ORIGINAL: "original"}, ORIGINAL
    if not entry.model.quantization:
        kinds |= {
            title: kind
            for kind, title in technique_checks.kind_titles().items()
            if technique_checks.technique_of(kind) == "quantize"
        }
    if len(kinds) > 1:
        title = st.segmented_control(
            "Weights", list(kinds), default=ORIGINAL, required=True, key="model_weights", bind="query-params"
        )
    # 2. The cheapest instance.
    footprints = catalog.memory(opened, entry.model, kinds[title or ORIGINAL])
    cheapest = catalog.cheapest_instance(opened, entry.model, kinds[title or ORIGINAL])
    if cheapest is not None:
        st.markdown(f"Lowest hourly price that fits: `{cheapest.instance}`, {cheapest.usd_per_hour:,.4g} USD per hour.")
        st.caption(f"{plain(cheapest.note)}. Based on our engines' rules and the estimated memory below.")
    else:
        st.markdown("No instance with a published price fits with our engines.")
    # 3. The chart and the table.
    drawn = charts_memory.memory(footprints, charts.theme())
    st.plotly_chart(
        charts.unvalidated(drawn),
        key="model_memory",
        theme=None,
        config=charts.CONFIG,
        alt=charts_memory.alt(footprints),
    )
    with st.expander("Show table", icon=":material/table_rows:"):
        st.dataframe(charts_memory.rows(footprints), hide_index=True, alt="Memory on each kind of hardware")


def show_engines(opened: Workspace, model: ModelFacts) -> None:
    """Show the engines that serve the model on this machine as it is, with the memory that is predicted."""
    # 1. Those that serve it, then those for which it is too large.
    fits = technique_checks.list_engine_fits(opened, model)
    serving = [fit for fit in fits if fit.fits]
    for fit in serving:
        figures = f"**{plain(fit.title)}** as {plain(fit.weight_format)}: {plain(fit_figures(fit))}"
        st.markdown(f":material/check_circle: Fits here on {figures}")
    for fit in fits:
        if fit.too_large:
            st.markdown(f":gray[:material/block: **{plain(fit.title)}**] {message(' '.join(fit.reasons))}")
    # 2. Where the figures come from.
    if serving:
        st.caption(plain(f"Not measured: {'; '.join(fit.basis for fit in serving)}."))


def show_draft(entry: CatalogEntry) -> None:
    """Show the known draft model, and what is not known about it."""
    model = entry.model
    if model.draft:
        st.markdown(
            f"**Draft model** {plain(model.draft)}. Its acceptance on this model was not measured by the catalog."
        )
    elif entry.published.speculative_decoding_with_provided_draft == "Yes":
        st.markdown("**Draft model** The page says that a draft is provided; no public one is known.")
    else:
        st.markdown("**Draft model** No draft is known. N-gram speculation needs none.")


def show_history(opened: Workspace, card: ModelCard, source: str) -> None:
    """Show artifacts made from the model and evaluations against it."""
    # 1. Artifacts.
    st.subheader("Artifacts made from it")
    own_artifacts = [
        view
        for view in artifacts.listing(opened, model=card.id, limit=SHOWN)
        if view.manifest.parent.path == card.path and not view.manifest.is_draft
    ]
    shell.show_damaged(opened, "artifact", artifacts.list_ids(opened, model=card.id, limit=SHOWN))
    if own_artifacts:
        st.dataframe(artifact_rows(own_artifacts), hide_index=True, alt="Artifacts with size and quality")
        with st.container(horizontal=True):
            for view in own_artifacts[:5]:
                label = f"Evaluate {plain(view.recipe)} ({view.id})"
                navigation.link("evaluate", label, ":material/speed:", variants=navigation.join_values(source, view.id))
                navigation.link("job", f"Job of {view.id}", ":material/open_in_full:", id=view.job_id)
    else:
        st.caption("Nothing yet. Optimized versions appear here with their size and quality.")
    # 2. Evaluations.
    st.subheader("Evaluations against it")
    measured = evaluations.listing(opened, baselines=recorded_names(card.id), limit=EVALUATIONS)
    for evaluation in measured:
        with st.container(border=True, key=f"model_evaluation-{evaluation.id}"):
            st.markdown(f"**{plain(evaluation.title)}**")
            for sentence in verdicts(evaluation.document):
                st.markdown(f"- {message(sentence)}")
            st.caption(plain(provenance(evaluation)))
            navigation.link("evaluate", "Open", ":material/open_in_full:", id=evaluation.id)
    if not measured:
        st.caption("Nothing measured yet. Verdicts against this model appear here.")
        navigation.link("evaluate", "Evaluate it", ":material/speed:", variants=navigation.join_values(source))
