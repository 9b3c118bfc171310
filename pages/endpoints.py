"""Endpoints: what is being served, where, and what does it cost?"""

import streamlit as st

from app.endpoints import cards
from app.session import workspace

opened = workspace()
st.title("Endpoints")
st.subheader("This machine")
cards.show_local(opened)
st.subheader("AWS")
cards.show_sagemaker(opened)
