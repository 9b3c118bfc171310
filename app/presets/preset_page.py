"""Presets on screens: list and selection, one preset with its three kinds of figures, apply, import and save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from app import model_field, navigation, shell, url_parameters
from app.field_labels import LABELS
from app.formatting import message, plain
from app.load_bar import address
from app.presets import preset_rows as preset_rows
from app.session import disabled_unless_allowed, owner_suffix
from backend.domain.errors import NotFound
from backend.domain.figures import counted
from backend.domain.machine.targets import target_kind
from backend.domain.model.facts import ModelCard
from backend.domain.planner.presets import GOALS
from backend.domain.planner.presets import names as preset_names
from backend.domain.recipe.recipe import Recipe
from backend.domain.recipe.step_words import steps_line
from backend.domain.roles import Action
from backend.present import load_words
from backend.present.source_names import short_name
from backend.service import Workspace
from backend.service.models import model_names
from backend.service.plans import recipe_files
from backend.service.presets import preset_comparison, preset_text, presets
from backend.service.presets.preset_comparison import PresetComparison
from backend.service.presets.presets import AppliedPreset, KnownPreset, PresetFilter, PresetView

HIGHEST_SHARE = 2.0
"""The price over the original's whose bar fills the column; a higher one fills it too."""
LAST_SELECTED, REVISION, NOTICE = "presets_seen", "presets_revision", "presets_told"


def show_model_presets(opened: Workspace, model_id: str) -> None:
    """Draw the presets of one model, as a section of the model's page."""
    st.subheader("Presets")
    # Without presets, lead to those of other models.
    known_presets = presets.listing(opened, PresetFilter(model=model_id))
    if not known_presets:
        st.caption("No presets for this model yet. Presets of other models can be applied to it on the Presets page.")
        navigation.link("presets", "All presets", ":material/bookmarks:")
        return
    # The original first, as what they are compared with.
    load = address.current().expected
    views = presets.views(opened, known_presets, load)
    comparison = preset_comparison.compare(opened, [view.preset for view in views], load)
    first = [preset_rows.original_row(comparison.original)] if comparison.original else []
    lines = [*first, *(preset_rows.row(view, comparison, load) for view in views)]
    show_winner(comparison)
    _draw_table(views, lines, alt="The original and the presets of this model: estimated, published and measured")
    # Lead to each, and to their comparison.
    with st.container(horizontal=True):
        for view in views:
            navigation.link(
                "presets",
                plain(comparison.name(view.preset.id)),
                ":material/bookmark:",
                presets_of_model=model_id,
                selected=view.preset.id,
            )
        if len(views) > 1:
            ids = ",".join(view.preset.id for view in views)
            navigation.link("compare", "Compare these presets", ":material/compare_arrows:", presets=ids)


def chosen_presets(opened: Workspace) -> list[KnownPreset]:
    """Return the known presets of the address; an unknown id is named."""
    words = url_parameters.query().get("selected", "")
    if (
        st.session_state.get(LAST_SELECTED, words) != words
    ):  # the address was changed by a link or by Back: draw the table anew
        st.session_state[REVISION] = st.session_state.get(REVISION, 0) + 1
    st.session_state[LAST_SELECTED] = words
    return find_presets(opened, words)


def chosen_names(known_presets: Sequence[KnownPreset]) -> list[str]:
    """Return what each chosen preset does and for which model."""
    chosen = [known.preset for known in known_presets]
    models = [preset.id.partition("/")[0] for preset in chosen]
    return [f"{model}: {name}" for model, name in zip(models, preset_names(chosen), strict=True)]


def find_presets(opened: Workspace, words: str) -> list[KnownPreset]:
    """Return the presets of ids with commas between, each once."""
    known_presets = []
    for preset_id in navigation.distinct_values([words]):
        try:
            known_presets.append(presets.find(opened, preset_id))
        except NotFound as error:
            st.error(message(error), icon=":material/error:")
    return known_presets


def show_winner(comparison: PresetComparison) -> None:
    """Name the preset that wins at the planned load and limits, or say which figure is missing."""
    load = address.current()
    choice = comparison.choose(load.goal)
    floor = "" if load.max_kl is None else f" Your quality floor (KL {load.max_kl:g}) is not estimated: evaluate it."
    if choice.winner is None:
        st.info(message(f"{choice.why}{floor}"), icon=":material/help:")
        return
    target = next(estimate for key, estimate in comparison.by_key.items() if key == choice.winner)
    place = load_words.instances(target.target, target) if target else ""
    name = plain(comparison.name(choice.winner))
    words = f"**{name}** on {plain(place)} is best for your load: {message(choice.why)}{message(floor)}"
    st.success(words, icon=":material/trophy:")


def _draw_table(views: Sequence[PresetView], lines: Sequence[dict[str, Any]], **options: Any) -> None:
    """Draw the columns for which 1280 pixels have room; a toggle shows the others."""
    st.caption(preset_rows.legend())
    st.caption(plain(preset_rows.basis(views, address.current().expected)))
    config: dict[str, Any] = {
        name: st.column_config.TextColumn(width=width) for name, width in preset_rows.COMPACT.items()
    }
    config[preset_rows.PRICE] = st.column_config.TextColumn(
        "≈ USD/M out", width=preset_rows.COMPACT[preset_rows.PRICE], help=preset_rows.PRICE
    )
    config[preset_rows.SHARE] = st.column_config.ProgressColumn(
        width=preset_rows.COMPACT[preset_rows.SHARE],
        min_value=0.0,
        max_value=HIGHEST_SHARE,
        format="%.2fx",
        help="Price per token over the original's.",
    )
    config[preset_rows.BY_LOAD] = st.column_config.BarChartColumn(
        width=preset_rows.COMPACT[preset_rows.BY_LOAD],
        y_min=0.0,
        help="Price per token at 1, 4, 16 and 64 users, and at yours.",
    )
    key = navigation.page_key("preset_columns")
    everything = st.session_state.get(key, url_parameters.query().get(key) == "true")
    order = None if everything else [*preset_rows.COMPACT]
    st.dataframe(lines, hide_index=True, column_config=config, column_order=order, **options)
    help_ = "Also show estimated speed, published and measured figures."
    st.toggle("All columns", key=key, bind="query-params", help=help_)


def show_table(opened: Workspace, views: Sequence[PresetView], selected: Sequence[str], key: str) -> None:
    """Draw the list; ticking rows changes the selection in the address."""
    # Every preset is compared with the original of its own model.
    load = address.current().expected
    comparisons = preset_comparison.compare_by_model(opened, (view.preset.model for view in views), load)
    # Tick the rows that the address names.
    ids, alone = [view.preset.id for view in views], len(comparisons) == 1
    name = f"presets-{key}-{st.session_state.get(REVISION, 0)}"
    rows = [number for number, preset_id in enumerate(ids) if preset_id in selected]
    _draw_table(
        views,
        [preset_rows.row(view, comparisons[view.preset.model], load, alone=alone) for view in views],
        key=name,
        selection_mode="multi-row",
        on_select=lambda: _select_ticked(name, ids),
        selection_default={"selection": {"rows": rows}},
        alt="Presets with what is estimated, published and measured of them",
    )


def _select_ticked(name: str, ids: Sequence[str]) -> None:
    """Select the ticked rows; the selection on other pages of the list remains."""
    ticked = [ids[row] for row in st.session_state[name].selection.rows]
    others = [
        preset_id
        for preset_id in navigation.split_values(url_parameters.query().get("selected", ""))
        if preset_id not in ids
    ]
    select([*others, *ticked])


def select(ids: Sequence[str]) -> None:
    """Write the selection into the address."""
    navigation.set_parameter("selected", ids)
    st.session_state[LAST_SELECTED] = navigation.join_values(*ids)


def show_detail(opened: Workspace, view: PresetView) -> None:
    """Draw one preset, with a box for each kind of figures."""
    goal = GOALS[view.preset.goal]
    comparisons = preset_comparison.compare_by_model(opened, [view.preset.model], address.current().expected)
    comparison = comparisons[view.preset.model]
    standing = comparison.row(view.preset.id)
    st.subheader(f"{plain(comparison.name(view.preset.id))} on {plain(view.preset.target)}", help=plain(view.preset.id))
    note = f" {message(standing.note)}" if standing and standing.note else ""
    st.markdown(f"**Best for: {plain(comparison.suits_whom(view.preset.id))}.**{note}")
    st.markdown(f"Made for: {goal.meaning}. {plain(view.preset.summary)}{owner_suffix(opened, view.owner)}")
    _estimated(view)
    _published(view)
    _measured(view)


def _head(kind: str) -> None:
    icon, word, meaning = preset_rows.KINDS[kind]
    st.markdown(f"{icon} **{word}**, {meaning}")


def _estimated(view: PresetView) -> None:
    with st.container(border=True, key="presets_box-estimated"):
        # Say why there is nothing.
        _head("estimated")
        levels = view.estimated.levels
        if not levels:
            st.caption(f"Nothing: {message(view.estimated.why_not)}")
            return
        # The figures, with load and price.
        st.dataframe(preset_rows.estimate_rows(view), hide_index=True, alt="Estimated figures at each concurrency")
        load, note = levels[0].load, levels[0].price_note
        st.caption(
            f"{load.input_tokens} tokens in, {load.output_tokens} out per request. Price: "
            f"{plain(note or 'none is known')}."
        )
        # Without speed of this machine, say where to measure it.
        if levels[0].tpot_ms is None and target_kind(view.preset.target) == "local":
            st.caption("The speed of this machine is not measured yet, so times are unknown.")
            navigation.link("hardware", "Measure it on Hardware", ":material/memory:")
        # How each figure is computed, and what is not known.
        with st.expander("How this is estimated"):
            for name, formula in levels[0].formulas.items():
                st.markdown(f"**{name}**: {plain(formula)}")
            for unknown in levels[0].unknown:
                st.caption(f"Unknown: {plain(unknown)}")


def _published(view: PresetView) -> None:
    with st.container(border=True, key="presets_box-published"):
        _head("published")
        if not view.preset.published:
            st.caption("No published figures.")
        for claim, today in zip(view.preset.published, view.today, strict=True):
            for part in preset_rows.claim_lines(claim, today):
                st.markdown(part)


def _measured(view: PresetView) -> None:
    with st.container(border=True, key="presets_box-measured"):
        _head("measured")
        # Say how to get figures.
        if not view.measured:
            st.caption("Not measured yet. Optimize a model with this recipe and evaluate it to see its figures here.")
        # Figures of each evaluation, its verdicts, and where it is.
        for number, measured in enumerate(view.measured):
            st.dataframe(
                preset_rows.measured_rows(measured), hide_index=True, alt=f"Measured figures of {measured.evaluation}"
            )
            for sentence in measured.verdicts:
                st.markdown(f"- {message(sentence)}")
            levels = [level.load for level in measured.levels]
            if note := load_words.measured_elsewhere(levels, measured.tokens, address.current()):
                st.caption(plain(note))
            st.caption(plain(f"{measured.provenance} Workload {measured.workload}."))
            if measured.bundled:
                st.caption("This evaluation comes with Whetstone.")
            else:
                navigation.link(
                    "evaluate", f"Open {measured.evaluation}", ":material/open_in_full:", id=measured.evaluation
                )
            if number + 1 < len(view.measured):
                st.divider()


def show_apply(opened: Workspace, view: PresetView) -> None:
    """Check the recipe for any model and target, and link Build with it."""
    # 1. Choose model and target.
    preset = view.preset
    st.markdown("**Apply it**")
    labels = model_names.list_present(opened)
    model = model_field.draw(
        opened,
        "To model",
        dict.fromkeys([preset.model, *labels]),
        labels,
        key=f"presets_apply-model-{preset.id}",
        format_func=lambda source: labels.get(source) or short_name(source),
        help="A model of the catalog, or the path of a folder.",
    )
    used = (known_preset.preset.target for known_preset in presets.listing(opened, limit=200))
    places = list(dict.fromkeys([preset.target, "local", "auto", *used]))
    target = st.selectbox("On target", places, key=f"presets_apply-target-{preset.id}", accept_new_options=True)
    # 2. Check the recipe there.
    with shell.errors_inline():
        _show_applied(presets.apply(opened, preset.id, model=model, target=target))
    st.code(recipe_files.write_text(preset.recipe), language=None, wrap_lines=True)


def _show_applied(applied: AppliedPreset) -> None:
    case, verdict = applied.case, applied.case.verdict
    # A published model can only be planned.
    if not isinstance(case.model, ModelCard):
        st.caption("Not downloaded: this is a plan only. Import the model to optimize it.")
        navigation.link("import", "Import it", ":material/folder_open:")
    # A valid recipe can be opened in Build.
    if verdict.plan is not None:
        st.success(
            f"Valid for {plain(short_name(applied.source))} on {plain(case.target_name)}.",
            icon=":material/check_circle:",
        )
        for note in verdict.plan.notes:
            st.caption(message(note))
        _build_link("Open in Build", applied, case.recipe, case.target_name)
        return
    # Otherwise give the reasons, and the closest recipe that is valid.
    for reason in verdict.reasons:
        st.error(message(reason.message), icon=":material/block:")
        st.caption(f"Why: {message(reason.source)}")
    nearest = verdict.suggestion
    if nearest is not None:
        where = verdict.suggestion_target or case.target_name
        label = f"Use the closest valid recipe: {plain(steps_line(nearest))}, on {plain(where)}"
        _build_link(label, applied, nearest, where)


def _build_link(label: str, applied: AppliedPreset, recipe: Recipe, target: str) -> None:
    """Draw the link to Build with the recipe; like every link it carries the load of these figures on."""
    address = url_parameters.write_recipe(recipe_files.write_text(recipe))
    if address is None:
        st.caption("The recipe is too long for a link: export it below and paste it into Build.")
    else:  # a link and not a button: Back then leads to this preset
        with st.container(border=True, width="content", key="presets_to-build"):
            place = {"model": applied.source, "recipe": address, "target": target}
            navigation.link("build", label, ":material/construction:", **place)


def show_files(opened: Workspace, ids: Sequence[str]) -> None:
    """Export the selected or listed presets as one file, or import such a file."""
    with st.expander("Export and import", icon=":material/swap_horiz:"):
        # Export what is selected or listed.
        if ids:
            st.download_button(
                f"Export {counted(len(ids), 'preset')}",
                lambda: presets.export(opened, ids),
                "presets.yaml",
                "application/yaml",
                on_click="ignore",
                icon=":material/download:",
                key="presets_export",
            )
        # Import a file, and say what happened to each preset.
        file = st.file_uploader("A file of presets", type=["yaml", "yml"], max_upload_size=1, key="presets_file")
        replace = st.checkbox(LABELS["replace"], key="presets_replace")
        options = {"disabled": file is None, **disabled_unless_allowed(opened, Action.SAVE_PRESET)}
        if st.button("Import", key="presets_import", **options):
            with shell.errors_inline():
                outcomes = presets.put(opened, preset_text.read(file.getvalue()), replace=replace)
                _store_notice(", ".join(f"{name}: {outcome}" for name, outcome in outcomes))


def show_save_form(opened: Workspace) -> None:
    """Save a recipe as a preset."""
    with (
        st.expander("Save a recipe as a preset", icon=":material/bookmark_add:"),
        st.form("presets_save-preset", border=False),
    ):
        # The fields of a preset; its figures come later from evaluations.
        name = st.text_input(
            "Id", placeholder="my-model/fast", max_chars=121, help="Two words with a slash in between."
        )
        labels = model_names.list_present(opened)
        model = st.selectbox(  # a form reads it only when it is saved
            "Model", labels, format_func=lambda source: labels.get(source, source), accept_new_options=True
        )
        goal = st.selectbox("Goal", list(GOALS), format_func=lambda goal: GOALS[goal].title)
        target = st.text_input("Target", "local", max_chars=80)
        summary = st.text_input("Summary", max_chars=200)
        text = st.text_area(
            "Recipe in YAML", "name: my recipe\nsteps:\n  - quantize: {method: w8a8}\n", max_chars=100_000
        )
        # Save it, select it, and say so.
        if st.form_submit_button("Save", key="presets_save", **disabled_unless_allowed(opened, Action.SAVE_PRESET)):
            with shell.errors_inline():
                recipe = recipe_files.read_text(text)
                source = model_field.resolve_typed(opened, model, labels)
                known = presets.save(
                    opened, name, model=source, goal=goal, recipe=recipe, target=target, summary=summary
                )
                select([known.preset.id])
                _store_notice(f"{known.preset.id} is saved.")


def _store_notice(words: str) -> None:
    """Store a message for the next run, whose list has the new preset."""
    st.session_state[NOTICE] = words
    st.rerun()


def show_notice() -> None:
    """Show the message of the last run."""
    if words := st.session_state.pop(NOTICE, None):
        st.success(plain(words), icon=":material/check_circle:")
