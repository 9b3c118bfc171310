"""Home: what is running, the latest result, and three ways to start."""

import streamlit as st

from app import demo, navigation, shell
from app.jobs.cards import active_cards, job_states
from app.results import latest_win
from app.session import workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs

LATEST = 10  # evaluations that are searched for a win
opened = workspace()


def running() -> tuple[tuple[str, str], ...]:
    place = st.container()
    failed, job_views, notice = demo.show_failed_installations(opened), jobs.active(opened), demo.show_notice(opened)
    if job_views:
        active_cards(opened, job_views)
    if failed or job_views or notice is not None:
        place.subheader("Running")
    return (*job_states(job_views), ("demo", str(notice)), ("failed", " ".join(failed)))


def ways() -> None:
    st.subheader("Three ways to start")
    left, middle, right = (column.container(border=True, height="stretch") for column in st.columns(3))
    with left:
        demo.show_start(opened)
    with middle:
        st.markdown("#### :material/menu_book: The catalog")
        st.markdown("See the known models, which techniques work on each, and why others do not.")
        navigation.link("catalog", "Open the catalog", ":material/arrow_forward:")
    with right:
        st.markdown("#### :material/folder_open: Your own model")
        st.markdown(
            "A folder, a hub id, an S3 prefix, a GGUF file or a Python package with one: read its card, then import it."
        )
        navigation.link("import", "Import a model", ":material/arrow_forward:")


head = st.container(horizontal=True, vertical_alignment="center")
head.title("Whetstone", width="stretch")
if head.button(
    "Optimize a model", type="primary", icon=":material/construction:", key="home_optimize", shortcut="Alt+O"
):
    navigation.go("build")
first_visit = jobs.count(opened) == 0 and not demo.is_active(opened)
latest = evaluations.listing(opened, limit=LATEST)
st.caption("Make a language model faster and cheaper to serve: combine techniques, and measure against the original.")
if latest:
    latest_win.show(opened, latest)
else:
    latest_win.show_recorded(opened)
if first_visit and not opened.read_only:
    ways()
shell.live("home", running, active=bool(jobs.active(opened)) or demo.is_active(opened))
if not latest:
    st.caption("No verdict yet. Measure an optimized model against its original to see one here.")
    navigation.link("evaluate", "Evaluate a model", ":material/speed:")
if not first_visit or opened.read_only:
    ways()
