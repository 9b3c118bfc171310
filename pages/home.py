"""Home: what is running, what was found out last, and three ways to start."""

import streamlit as st

from app import first_run, navigation, once, shell
from app.jobs.cards import active_cards, mark
from app.labels import sentence
from app.results import hero
from app.session import frozen, workspace
from app.words import count, plain, size
from backend.domain.errors import WhetstoneError
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs
from backend.service.models import models
from backend.service.plans import optimize
from backend.service.studio import demo

STARTER_RECIPE = "w8a8"
LATEST = 10  # evaluations that are searched for a win
opened = workspace()


def running() -> tuple[tuple[str, str], ...]:
    found, demo = jobs.active(opened), first_run.notice(opened)
    if found:
        active_cards(opened, found)
    elif demo is None:
        st.caption("Nothing is running.")
    return (*mark(found), ("demo", str(demo)))


def start_starter() -> None:
    prepared = demo.prepare(opened, STARTER_RECIPE)
    job = optimize.submit(opened, prepared, submission=once.key("starter", for_s=once.DOUBLE_CLICK_S))
    navigation.go("job", id=job.id)


def way_starter() -> None:
    st.markdown("#### :material/rocket_launch: The starter model")
    try:
        card = models.resolve(opened, "starter")
    except WhetstoneError as error:
        st.markdown(plain(sentence(error)))
        return
    st.markdown(
        f"A model of {count(card.parameters)} parameters comes with Whetstone ({size(card.weights_bytes)}). "
        "Quantize it to INT8 on this machine and watch it: no download, no account."
    )
    if st.button("Optimize the starter", type="primary", icon=":material/play_arrow:", shortcut="Alt+S", **frozen(opened)):
        with shell.told():
            start_starter()


def way_catalog() -> None:
    st.markdown("#### :material/menu_book: The catalog")
    st.markdown("See which models are known here, what each technique would do to them, and why one does not fit.")
    navigation.link("catalog", "Open the catalog", ":material/arrow_forward:")


def way_folder() -> None:
    st.markdown("#### :material/folder_open: Your own folder")
    folder = st.text_input("Folder with config.json and safetensors", placeholder="/path/to/model", key="home_folder")
    if st.button("Look at it", icon=":material/search:") and folder.strip():
        with shell.told():
            card = models.resolve(opened, folder.strip())
            navigation.go("model", id=card.path)


def ways() -> None:
    st.subheader("Three ways to start")
    for column, way in zip(st.columns(3), (way_starter, way_catalog, way_folder), strict=True):
        with column.container(border=True, height="stretch"):
            way()


st.title("Whetstone")
st.markdown("Sharpen a language model for serving: choose a model, stack techniques into a recipe, measure against the original.")
first_visit = jobs.count(opened) == 0
latest = evaluations.listing(opened, limit=LATEST)
if latest:
    hero.show(latest)
if first_visit and not opened.read_only:
    ways()
st.subheader("Running")
shell.live("home", running, active=bool(jobs.active(opened)) or first_run.moves(opened))
if not latest:
    st.caption("When an optimized model has been measured against its original, the verdict will stand here.")
    navigation.link("evaluate", "Evaluate a model", ":material/speed:")
if not first_visit or opened.read_only:
    ways()
