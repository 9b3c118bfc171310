"""Playground: does it still answer well?"""

import streamlit as st

from app import navigation, playground

head = st.container(horizontal=True, vertical_alignment="bottom")
head.title("Playground", width="stretch")
action = head.container(width="content")
urls = playground.addresses()
prompt = st.text_area("Prompt", playground.DEFAULT, height=160, key="prompt")
left, right = st.columns(2)
max_tokens = left.number_input("Longest answer (tokens)", 1, 4096, 128, key="playground_tokens")
temperature = right.number_input("Temperature", 0.0, 2.0, 0.0, 0.1, key="playground_temperature", help="0 is greedy.")
asked = action.button(
    "Answer", type="primary", icon=":material/send:", shortcut="Ctrl+Enter", key="answer", disabled=not (any(urls) and prompt)
)

if not asked:
    st.info(
        "Both answers will stand here, one after the other so that neither slows the other. Give the URL of one or two "
        "running endpoints; this version does not start endpoints from the studio.",
        icon=":material/info:",
    )
    navigation.link("evaluate", "Measure instead", ":material/speed:")
    st.stop()

answers = []
for column, title, url in zip(st.columns(2), playground.TITLES, urls, strict=True):
    with column:
        if url:
            answers.append(playground.answer(title, url, prompt, int(max_tokens), float(temperature)))
if len(answers) == 2 and answers[0] is not None and answers[1] is not None:
    st.markdown(playground.difference(answers[0], answers[1]))
