"""Train a draft: what would propose tokens for my model, and how often is it right?"""

import streamlit as st

from app import navigation
from app.formatting import message, plain
from app.session import workspace
from app.summaries import model_source
from app.train import form
from backend.present.words import drafts
from backend.service.jobs import artifacts

opened = workspace()
head = st.container(horizontal=True, vertical_alignment="bottom")
head.title("Train a draft", width="stretch")
action = head.container(width="content")
st.markdown(
    "Speculative decoding saves time without changing answers: a small draft model proposes tokens, and the model "
    "checks them all at once. A draft that has learned from what *this* model answers to *your* prompts is accepted "
    "more often. An evaluation then measures how much faster it is."
)
notices = st.container()
subject = form.choose_model(opened)
values = form.choose_options()
path = form.choose_prompts(opened)
request = form.check(opened, subject, values, path)
if request.obstacle:
    notice = notices.info if opened.read_only else notices.error
    notice(message(request.obstacle), icon=":material/error:")
with action:
    form.submit_button(opened, request)

if request.spec is not None:
    st.subheader("Drafts for it")
    drafts_made = artifacts.drafts(opened, request.spec.model)
    for view in drafts_made:
        facts = view.manifest.training or {}
        with st.container(border=True, horizontal=True, vertical_alignment="center", key=f"train_draft-{view.id}"):
            st.markdown(
                f"**{plain(view.recipe)}** `{view.id}`  \n{plain(drafts.acceptance_words(facts))}", width="stretch"
            )
            navigation.link("job", "Open its job", ":material/open_in_full:", id=view.job_id)
    if not drafts_made:
        st.caption(
            "No drafts yet. A trained draft appears here with its acceptance, ready to use in a recipe on Build."
        )
    navigation.link("build", "Build a recipe", ":material/construction:", model=model_source(request.spec.model))
