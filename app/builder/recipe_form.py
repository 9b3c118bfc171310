"""The form of the recipe. Its YAML text is in the URL and in the session; widgets are drawn from it and write it back.

So it survives a refresh, a visit to another page and a shared link, and every change can be undone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

from app import navigation, shell, url_parameters
from app.builder import calibration_upload, recipe_options
from app.builder.option import Option
from app.builder.serving_options import LIMIT_OPTIONS, SERVING_OPTIONS
from app.field_labels import error_sentence
from app.formatting import message, plain
from app.load_bar import address
from app.summaries import model_source
from backend.domain.errors import WhetstoneError
from backend.domain.model.facts import ModelCard, ModelFacts
from backend.domain.recipe import quantize_step, step_words
from backend.domain.recipe.methods import TARGETS
from backend.domain.recipe.quantization_engines import ENGINES
from backend.domain.recipe.recipe import Prune, Quantize, Recipe, Step, run_order
from backend.domain.rules.nearest_recipe import with_dividing_group
from backend.service import Workspace
from backend.service.jobs import artifacts
from backend.service.plans import cases, recipe_files
from backend.service.plans.cases import Addition, Case

EMPTY = f"name: {step_words.UNNAMED}\nsteps: []\n"
TEXT, UNDO, REVISION, ERROR = "build_text", "build_undo", "build_revision", "build_error"
USED_NAMES = "build_taken"
"""Recipe name -> hashes of the recipes of that name that made artifacts here."""
MENU = "build_add"
"""Key of the menu of steps: whether it is open."""
UNREAD = "build_unread"
"""Session key: why the pasted YAML was refused."""
OF_TEXT = frozenset({"calibration", "samples", "length"})
"""Options that mean nothing if no calibration text is read."""


class Draft(NamedTuple):
    """The current text, and either its recipe or the error that says why it is none."""

    text: str
    recipe: Recipe | None
    error: str | None


def current_draft() -> Draft:
    """Return the recipe of the URL (YAML or a bundled name), else of this session, else an empty one."""
    text = st.session_state.get(TEXT) or EMPTY
    address = url_parameters.query().get("recipe", "")
    try:
        text = url_parameters.read_recipe(address) or text
        bundled = text in recipe_files.bundled_names()
        recipe = recipe_files.read_file(Path(text)) if bundled else recipe_files.read_text(text)
    except WhetstoneError as error:
        return Draft(text, None, error_sentence(error))
    text = recipe_files.write_text(recipe) if bundled else text
    if st.session_state.get(TEXT) != text:  # the address was changed from outside, by a link or by Back
        _redraw()
    _store(text)
    return Draft(recipe_files.write_text(recipe), recipe, None)


def set_recipe(recipe: Recipe, *, redraw: bool = True) -> None:
    """Make this the recipe of the form. `redraw`: the widgets must show it anew."""
    draft = current_draft()
    before, after = draft.text, recipe_files.write_text(_with_fresh_name(draft.recipe, recipe))
    st.session_state.pop(ERROR, None)
    st.session_state.pop(UNREAD, None)
    if after != before:
        st.session_state.setdefault(UNDO, []).append(before)
        del st.session_state[UNDO][:-50]
    # before the address, whose change a waiting rerun may interrupt: new text is never drawn by the old widgets
    if redraw:
        _redraw()
    _store(after)


def _with_fresh_name(before: Recipe | None, after: Recipe) -> Recipe:
    """Return the recipe with a new, unused name if its name only lists the steps or is that of a bundled recipe."""
    if before is None or after.name != before.name or after.steps == before.steps:
        return after
    if not step_words.has_default_name(before) and before.name not in recipe_files.bundled_names():
        return after
    name = step_words.recipe_name(after)
    used = {candidate for candidate, hashes in st.session_state.get(USED_NAMES, {}).items() if hashes != {after.hash}}
    free = (
        candidate
        for candidate in (name, *(f"{name} {number}" for number in range(2, len(used) + 3)))
        if candidate not in used
    )
    return recipe_options.with_name(after, next(free))


def read_used_names(opened: Workspace) -> None:
    """Store the names of recipes that made artifacts here."""
    hashes: dict[str, set[str]] = {}
    for view in artifacts.listing(opened):
        hashes.setdefault(view.recipe, set()).add(view.recipe_hash)
    st.session_state[USED_NAMES] = hashes


def _store(text: str) -> None:
    st.session_state[TEXT] = text
    address = url_parameters.write_recipe(text)
    if address and url_parameters.query().get("recipe") != address:
        url_parameters.query()["recipe"] = address
    elif not address:  # too long for an address even when packed: this session alone has it
        url_parameters.query().pop("recipe", None)


def _redraw() -> None:
    st.session_state[REVISION] = st.session_state.get(REVISION, 0) + 1


def undo() -> None:
    """Restore the recipe before the last change."""
    if st.session_state.get(UNDO):
        st.session_state.pop(ERROR, None)
        _redraw()
        _store(st.session_state[UNDO].pop())


def widget_key(*parts: object) -> str:
    """Return the key of a widget that shows the current recipe.

    A browser that is behind still sends the widgets of the previous recipe; callbacks ignore keys other than this one.
    """
    return "-".join(["build", str(st.session_state.get(REVISION, 0)), *map(str, parts)])


def _edit(change: Callable[[Recipe], Recipe], *, redraw: bool = True) -> None:
    """Apply a change. One that gives no valid recipe is refused with a sentence, and nothing is lost."""
    recipe = current_draft().recipe
    if recipe is None:
        return
    with shell.errors_in_session(ERROR):
        set_recipe(change(recipe), redraw=redraw)


def draw_goals(opened: Workspace, model: ModelFacts, target: str) -> None:
    """Draw the starting goals, the custom start, undo and the bundled recipes."""
    st.markdown("**Goal**: pick a starting recipe. Every step can be changed below.")
    # 1. Starting goals, an empty recipe, undo.
    with st.container(horizontal=True):
        for name, goal in recipe_options.GOALS.items():
            st.button(
                goal.title,
                key=f"build_goal-{name}",
                help=goal.help,
                on_click=_start,
                args=(opened, model, target, goal.starts),
            )
        st.button(
            "Custom",
            key="build_goal-hand",
            help="Start with no steps.",
            on_click=set_recipe,
            args=(recipe_files.read_text(EMPTY),),
        )
        st.button(
            "Undo",
            key="build_take-back",
            icon=":material/undo:",
            disabled=not st.session_state.get(UNDO),
            on_click=undo,
        )
    # 2. Bundled recipes.
    names = recipe_files.bundled_names()
    st.selectbox(
        "Or start from a bundled recipe",
        names,
        index=None,
        placeholder="Choose one",
        key=widget_key("bundled"),
        format_func=lambda name: f"{name}: {recipe_files.describe(name)}",
        on_change=_bundled,
        args=(widget_key("bundled"),),
    )


def _start(opened: Workspace, model: ModelFacts, target: str, starts: tuple[str, ...]) -> None:
    """Take the first of these recipes that is valid and served on the target, else the first."""
    candidates = [with_dividing_group(model, recipe_files.read_file(Path(name))) for name in starts]
    with shell.errors_in_session(ERROR):
        set_recipe(
            next(
                (recipe for recipe in candidates if cases.resolve(opened, model, recipe, target).served), candidates[0]
            )
        )


def _bundled(key: str) -> None:
    if key == widget_key("bundled") and (name := st.session_state.get(key)):
        set_recipe(recipe_files.read_file(Path(name)))


def draw_steps(opened: Workspace, recipe: Recipe, *, experts: bool) -> None:
    """Draw a card for each step, in the order in which they run. `experts`: the model is a mixture of experts."""
    # Say how to begin.
    if not recipe.steps:
        st.info(
            "No steps yet. Choose a goal above, or add a step.",
            icon=":material/info:",
        )
    # One card for each step, whatever the order of the text: its title, what it does, its options.
    for number, (index, step) in enumerate(sorted(enumerate(recipe.steps), key=lambda each: run_order(each[1])), 1):
        with st.container(border=True):
            _head(number, index, step)
            st.caption(step_words.step_help(step))
            reads = quantize_step.reads_text(recipe)
            options = recipe_options.shown_options(step, experts=experts)
            _fields(recipe, index, tuple(option for option in options if reads or option.name not in OF_TEXT))
            # Say which engine makes it, and take calibration text if the step reads any.
            if isinstance(step, Prune | Quantize) and any(option.name == "engine" for option in options):
                st.caption(ENGINES[step.engine].prefer)
            if isinstance(step, Quantize) and reads:
                calibration_upload.upload(opened, widget_key(index, "upload"), partial(_calibrate, index))


def _calibrate(index: int, path: str) -> None:
    _edit(lambda recipe: recipe_options.with_setting(recipe, index, "calibration", path))


def _head(number: int, index: int, step: Step) -> None:
    """Draw the title of a step, the `number`-th that runs, with its remove button."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{number}. {plain(step_words.step_title(step))}**", width="stretch")
        act = {"on_click": _edit, "args": (lambda built: recipe_options.without_step(built, index),)}
        st.button("Remove", key=widget_key(index, "remove"), type="tertiary", help=f"Remove step {number}", **act)


def draw_add_menu(opened: Workspace, model: ModelFacts, recipe: Recipe, case: Case | None) -> None:
    """Draw a menu of every step of this version; those that do not fit are disabled with the reason."""
    # Check each step against the model and the recipe.
    try:
        choices = cases.additions(opened, model, recipe, case)
    except WhetstoneError as error:
        st.error(message(error), icon=":material/error:")
        return
    # Draw them by groups.
    with st.popover("Add a step", icon=":material/add:", key=MENU, width="stretch", on_change="rerun"):
        for heading in dict.fromkeys(step_words.menu_group(choice.step) for choice in choices):
            st.markdown(f"**{heading}**")
            for index, choice in enumerate(choices):
                if step_words.menu_group(choice.step) == heading:
                    _draw_addition(index, choice)
        # A draft of this model's own can be trained.
        if isinstance(model, ModelCard):
            navigation.link(
                "train", "Train a draft for this model", ":material/model_training:", model=model_source(model)
            )


def _draw_addition(index: int, choice: Addition) -> None:
    """Draw one step of the menu with what it does, or the reason against it and the closest recipe that has it."""
    # The step itself, greyed if the rules refuse it.
    act = {"on_click": _add, "args": (choice.step,)}
    name, greyed = step_words.step_title(choice.step), choice.reason is not None
    with st.container(gap=None, key=f"build_offer-{index}"):
        st.button(name, key=f"build_add-{index}", type="tertiary", icon=":material/add:", disabled=greyed, **act)
        st.caption(message(choice.reason or step_words.step_help(choice.step)))
        # Offer the closest recipe that is valid.
        if choice.instead is not None:
            label = f"Use {plain(step_words.steps_line(choice.instead))} instead"
            st.button(
                label,
                key=f"build_instead-{index}",
                icon=":material/swap_horiz:",
                on_click=_take_instead,
                args=(choice.instead,),
            )


def _add(step: Step) -> None:
    """Add a step to the recipe, and close the menu: what follows is its card."""
    st.session_state[MENU] = False
    _edit(lambda built: recipe_options.with_step(built, step))


def _take_instead(recipe: Recipe) -> None:
    st.session_state[MENU] = False
    set_recipe(recipe)


def draw_serving(recipe: Recipe) -> None:
    with st.expander("Serving settings"):
        _fields(recipe, "serving", SERVING_OPTIONS)


def draw_limits(recipe: Recipe) -> None:
    with st.expander("Quality floor"):
        st.caption("Fail if quality loss exceeds these limits: nothing is registered then, unless fall back is on.")
        floor = address.current().max_kl
        if floor and recipe.limits.max_kl != floor:
            words = f"Use the floor of your load: KL divergence at most {floor:g}"
            st.button(words, key="build_use-floor", icon=":material/tune:", on_click=_use_floor, args=(floor,))
        _fields(recipe, "limits", LIMIT_OPTIONS)


def _use_floor(max_kl: float) -> None:
    _edit(lambda built: recipe_options.with_setting(built, "limits", "max_kl", max_kl))


def draw_name(recipe: Recipe) -> None:
    # its own, so that what an earlier recipe was called is never taken for a change
    key = widget_key("name", recipe.name)
    st.text_input("Recipe name", recipe.name, key=key, max_chars=80, on_change=_rename, args=(key,))


def _rename(key: str) -> None:
    recipe = current_draft().recipe
    if recipe is not None and key == widget_key("name", recipe.name):
        _edit(lambda built: recipe_options.with_name(built, st.session_state[key]), redraw=False)


def _fields(recipe: Recipe, where: int | str, shown: tuple[Option, ...]) -> None:
    if not shown:
        return
    across = min(3, len(shown))
    for position, option in enumerate(shown):
        if position % across == 0:
            columns = st.columns(across)
        with columns[position % across]:
            _field(option, recipe_options.value(recipe, where, option.name), widget_key(where, option.name), where)


def _field(option: Option, value: Any, key: str, where: int | str) -> None:
    # Every kind of option has a widget of its own.
    common = {"key": key, "help": option.help, "on_change": _set, "args": (where, option.name, key)}
    match option.kind:
        case "choice":
            choices = option.choices if value in option.choices else (value, *option.choices)
            st.selectbox(option.label, choices, choices.index(value), format_func=_choice_label, **common)
        case "whole":
            high = int(option.high) if option.high else None
            st.number_input(option.label, min_value=int(option.low or 0), max_value=high, value=value, step=1, **common)
        case "share" | "number" | "bits" | "rate":
            kinds = {
                "share": (0.05, "%.2f"),
                "bits": (0.25, "%.2f"),
                "number": (0.001, "%.4f"),
                "rate": (0.0001, "%.6f"),
            }
            step, shape = kinds[option.kind]
            st.number_input(
                option.label,
                min_value=option.low,
                max_value=option.high,
                value=value,
                step=step,
                format=shape,
                **common,
            )
        case "flag":
            st.checkbox(option.label, value, **common)
        case _:
            st.text_input(option.label, value or "", **common)


def _choice_label(value: Any) -> str:
    return {None: "default", True: "yes", False: "no"}.get(value) or str(value)


def _set(where: int | str, name: str, key: str) -> None:
    if key != widget_key(where, name):
        return
    value = st.session_state[key]
    value = None if value == "" else value
    recipe = current_draft().recipe
    step = recipe.steps[where] if isinstance(where, int) and recipe is not None else None
    together = name == "tokens_by_batch" or (name == "tokens" and getattr(step, "tokens_by_batch", None) is not None)
    _edit(
        lambda built: recipe_options.with_setting(built, where, name, value),
        redraw=name in {"method", *TARGETS} or together,
    )


def last_error() -> str | None:
    """Return why the last change was refused."""
    text: str | None = st.session_state.get(ERROR)
    return text
