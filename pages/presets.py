"""Presets: where do others start?"""

import streamlit as st

from app import navigation, shell
from app.compare import preset_comparison as compare_presets
from app.formatting import plain
from app.load_bar import address
from app.navigation import NARROWS
from app.presets import preset_chart
from app.presets import preset_page as shown
from app.session import workspace
from backend.domain.planner.presets import GOALS
from backend.service.presets import presets
from backend.service.presets.presets import PresetFilter

PER_PAGE = 20
opened = workspace()
load = address.current().expected
head = st.container(horizontal=True, vertical_alignment="bottom")
head.title("Presets", width="stretch")
action = head.container(width="content")
st.markdown(
    "Recipes to start from, each for a model, a goal and a target. Tick one to open it in Build, two or more to "
    "compare them."
)
shown.show_notice()
selected = shown.chosen_presets(opened)
ids = [known.preset.id for known in selected]
with action:
    if st.button(
        f"Compare {len(ids)}" if len(ids) > 1 else "Compare",
        type="primary",
        icon=":material/compare_arrows:",
        key="presets_compare",
        disabled=len(ids) < 2,
        help="On the Compare page, beside evaluations. Tick at least two.",
        shortcut="Alt+P",
    ):
        navigation.go("compare", presets=",".join(ids))

with st.container(horizontal=True, vertical_alignment="bottom"):
    goal = st.pills(
        "Made for", list(GOALS), format_func=lambda goal: GOALS[goal].title, key="presets_for_goal", **NARROWS
    )
    model = st.selectbox(
        "Model",
        presets.models_with_presets(opened),
        index=None,
        key="presets_of_model",
        placeholder="Every model",
        width=230,
        **NARROWS,
    )
    words = st.text_input("Search", key="presets_words", type="search", max_chars=80, width=140, **NARROWS)
chosen = PresetFilter(model=model, goal=goal, words=words or "")
total = presets.count(opened, chosen)
if model:
    preset_chart.show(opened, model)
else:
    st.caption("Choose a model to see which of its presets is best for your load, and why.")
if total:
    page, first = navigation.paginate(total, PER_PAGE)
    listed = presets.views(opened, presets.listing(opened, chosen, limit=PER_PAGE, offset=first), load)
    shown.show_table(opened, listed, ids, f"{goal}-{model}-{words}-{page}")
else:
    st.info("No preset matches these filters. Remove a filter.", icon=":material/filter_alt_off:")

if ids:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"Chosen: {plain(', '.join(shown.chosen_names(selected)))}")
        st.button("Clear selection", key="presets_none", type="tertiary", on_click=shown.select, args=([],))
views = presets.views(opened, selected[: compare_presets.MOST], load)
if len(views) == 1:
    left, right = st.columns([2, 1], gap="medium")
    with left:
        shown.show_detail(opened, views[0])
    with right:
        shown.show_apply(opened, views[0])
elif views:
    st.subheader("Side by side")
    compare_presets.show(opened, views)
shell.show_damaged(opened, "preset")
shown.show_files(opened, ids or [known.preset.id for known in presets.listing(opened, chosen, limit=500)])
shown.show_save_form(opened)
