"""A page of hostile words, each where Streamlit reads Markdown: for a look in a real browser. Run by Streamlit."""

import json
import os

import streamlit as st

from app.formatting import message, plain

for number, words in enumerate(json.loads(os.environ["WORDS"])):
    with st.container(key=f"text-{number}"):
        st.markdown(plain(words))
    with st.container(key=f"bold-{number}"):
        st.markdown(f"**{plain(words)}**")
    with st.container(key=f"error-{number}"):
        st.error(message(words))
    with st.container(key=f"button-{number}"):
        st.button(plain(words), key=f"press-{number}")
    with st.container(key=f"title-{number}"):
        st.title(plain(words))
st.caption("The end.")
