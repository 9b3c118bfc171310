"""Playground: does it still answer well?"""

import streamlit as st

from app import navigation
from app.formatting import message
from app.playground import chat, pair_choice, servers
from app.session import workspace
from backend.domain.errors import ReadOnly
from backend.service.serving import serve

opened = workspace()
st.title("Playground")
st.markdown("Ask the original and the optimized model the same thing, and see where their answers differ.")
pair = pair_choice.choose_pair(opened)
alone = len(pair) == 1
served = servers.ready_servers(opened, pair) if pair else None
if alone and serve.is_address(pair[0][1]):
    st.caption("One server is selected. Choose a second one to compare.")
elif alone:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption("Only one model is selected. To compare it, make an optimized version with a recipe.")
        navigation.link("build", "Optimize it", ":material/construction:")

question = chat.draw_form(opened, able=bool(served), alone=alone, talks=servers.has_chat_templates(opened, pair))
chat.show_history()
chat.show_turns()
if question and served:
    chat.ask(opened, served, [name for name, _ in pair], question)
if opened.read_only:
    st.info(message(str(ReadOnly())), icon=":material/info:")
elif not chat.open_turns():
    st.info(
        (
            "Both answers appear here with the differences marked. They run one after the other, so that neither "
            "slows the other."
        )
        if served
        else "Start the servers first. Then both answers appear here with the differences marked.",
        icon=":material/info:",
    )
chat.show_next_steps([source for _, source in pair])
