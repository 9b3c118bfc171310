"""Import: how do I bring my own?"""

import streamlit as st

from app import importing
from app.session import workspace

opened = workspace()
head = st.container(horizontal=True, vertical_alignment="bottom")
head.title("Import", width="stretch")
action = head.container(width="content")

st.markdown(
    "Give a folder on the machine that runs the studio. It holds config.json, a tokenizer and safetensors weights. "
    "Nothing is copied, and no code in it is run."
)
folder = st.text_input(
    "Folder", key="folder", bind="query-params", placeholder="/path/to/model", help="Read as soon as you press Enter."
).strip()
st.caption("Models of the hub and of S3 come with a later version: until then, download one and give its folder.")

card = importing.look(opened, folder) if folder else None
with action:
    importing.buttons(opened, card)
if card is not None:
    importing.describe(opened, card)
elif not folder:
    st.info("What the folder holds, how large it is and what fits it will stand here.", icon=":material/info:")
importing.listed(opened)
