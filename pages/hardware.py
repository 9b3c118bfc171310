"""Hardware: what can this machine do?"""

import streamlit as st

from app import navigation, shell
from app.formatting import plain
from app.hardware import artifact_cleanup, engine_cards, instance_table
from app.hardware.machine_rows import accelerator_rows, figures, instruction_sets, neuron_rows, speed_figures
from app.jobs.cards import job_states
from app.session import disabled_unless_allowed, workspace
from backend.domain.roles import Action
from backend.service.machines import engines, machine

opened = workspace()
st.title("Hardware")
here = machine.show(opened)
shell.show_figures(figures(here))
if opened.read_only:
    st.caption("This is the machine that shows the demonstration, not the one that was measured.")

st.subheader("Engines")
st.markdown("Each engine has an environment of its own, since their libraries exclude each other.")


def cards() -> tuple[tuple[str, str], ...]:
    latest = engines.latest_jobs(opened)
    for engine in engines.listing(opened):
        engine_cards.show_card(opened, engine, latest.get(engine.name))
    return job_states(list(latest.values()))


shell.live("engines", cards, active=any(not job.ended for job in engines.latest_jobs(opened).values()))

st.subheader("Accelerators")
if here.accelerators:
    st.dataframe(accelerator_rows(here), hide_index=True, alt="Accelerators with memory and driver")
if here.neuron:
    st.dataframe(neuron_rows(here), hide_index=True, alt="Neuron devices with memory and cores")
if not here.accelerators and not here.neuron:
    st.caption("No GPU and no Neuron device is attached: quantization, serving and measuring run on the processor.")

st.subheader("Processor")
rows = instruction_sets(here)
if rows:
    st.markdown("Instruction sets that decide which kernels run:")
    st.dataframe(rows, hide_index=True, alt="Instruction sets of this processor and what each is for")
else:
    st.warning("This processor has none of the instruction sets that make vLLM fast.", icon=":material/warning:")
if here.speed:
    shell.show_figures(speed_figures(here.speed))
else:
    st.caption("Memory bandwidth is not measured yet. The first estimate for this machine measures it too.")
options = {"help": "Reads memory and multiplies for six seconds. Estimates use the figures; other work lowers them."}
label = "Measure again" if here.speed else "Measure it"
if st.button(
    label, key="hardware_measure", icon=":material/speed:", **options | disabled_unless_allowed(opened, Action.MEASURE)
):
    with st.spinner("Measuring memory bandwidth and matrix products"), shell.errors_inline():
        machine.measure(opened)
        st.rerun()
if here.compiler:
    st.markdown(":material/check_circle: C++ compiler and Python headers are there, so models can be compiled.")
else:
    st.markdown(
        ":material/warning: Compiling models needs a C++ compiler and Python headers: install g++ and python3-dev."
    )
st.caption(plain(f"{here.cpu}, {here.os}, {here.machine}, Python {here.python}"))
artifact_cleanup.show(opened)
instance_table.show(opened)
navigation.link("playground", "Try a model here", ":material/chat:")
