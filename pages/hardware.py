"""Hardware: what can this machine do?"""

import streamlit as st

from app import navigation, shell
from app.hardware import accelerator_rows, engine_line, figures, offered
from app.session import frozen, workspace
from app.words import plain
from backend.service import engines, jobs, machine

opened = workspace()
st.title("Hardware")
here = machine.show(opened)
shell.figures(figures(here))
if opened.read_only:
    st.caption("This is the machine that shows the demonstration, not the one that was measured.")

st.subheader("Accelerators")
if here.accelerators:
    st.dataframe(accelerator_rows(here), hide_index=True, alt="Accelerators with memory and driver")
else:
    st.caption("None is attached: quantization, serving and measuring run on the processor.")
st.markdown("Processor features that decide which kernels run: " + (", ".join(f"`{name}`" for name in here.features) or "none"))
compiler = ":material/check_circle: present" if here.compiler else ":material/warning: missing: install g++ and python3-dev"
st.markdown(f"C++ compiler and Python headers: {compiler}")
st.caption(plain(f"{here.os}, {here.machine}, Python {here.python}"))

st.subheader("Engines")
st.markdown("The libraries that optimize and serve cannot share one environment, so each engine has its own.")
busy = {job.title for job in jobs.active(opened) if job.kind == "install"}
for engine in engines.listing(opened):
    with st.container(border=True, key=f"engine-{engine.name}"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"**{engine.name}** · {engine_line(engine)}", width="stretch")
            verb = offered(engine)
            queued = f"Install the engine {engine.name}" in busy
            if queued:
                navigation.link("jobs", "Being installed", ":material/downloading:")
            elif verb and st.button(verb, key=f"install-{engine.name}", icon=":material/download:", **frozen(opened)):
                with shell.told():
                    navigation.go("job", id=engines.install(opened, engine.name).id)
        st.markdown(f"For: {plain(engine.purpose)}.  \nNeeds: {plain(engine.hardware)}.")
        if engine.can:
            st.caption(plain(f"Can do here: {engine.can}"))
