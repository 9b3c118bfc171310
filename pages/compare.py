"""Compare: which variant for me?"""

import streamlit as st

from app import charts, navigation
from app.compare import form, side_by_side, what_if_url
from app.compare import preset_comparison as compare_presets
from app.compare import slo_sliders as compare_slo
from app.formatting import message, plain
from app.load_bar import address
from app.overview import caveats
from app.results import evaluation_page, figure_tables, imported_results, variant_choice, verdict_panel
from app.session import workspace
from backend.domain.limits import chart_selection, slo
from backend.present import evaluation_top, load_words
from backend.present.charts import evaluation as drawn
from backend.present.charts import tradeoffs

opened = workspace()
head = st.container(horizontal=True, vertical_alignment="center")
head.title("Compare", width="stretch")
notes, copied = head.container(width="content"), head.container(width="content")
with head.container(width="content"):
    navigation.link("evaluate", "New evaluation", ":material/speed:", new="true")

left, right = st.columns([3, 2])
with left:
    views = form.choose(opened)
with right:
    presets = compare_presets.choose(opened)
if presets:
    compare_presets.show(opened, presets, views)
if not views:
    with copied:
        what_if_url.show_link()
    if not presets:
        st.caption("The charts appear here. The first one shows speed per user against total throughput.")
    imported_results.show(opened, None)
    st.stop()

what_if_url.follow()
top = st.container()
what_ifs = form.what_if(views)
documents = [document for _, document in what_ifs]
whole = side_by_side.merge(views, documents)
theme = charts.theme()
titled = {title: view.document for title, view in zip(side_by_side.titles(views), views, strict=True)}
lettered = {letter: view.document for letter, view in zip(side_by_side.LETTERS, views, strict=False)}
with notes:
    caveats.show(side_by_side.lettered_sentences(lettered, evaluation_top.caveat_sentences))
with top:
    if len(views) == 1:
        verdict_panel.show_verdict(views[0].document)
    else:
        verdict_panel.show_several(titled)
    shown = variant_choice.choose(whole, "shown")
    chart, limit_column = st.columns([3, 1])
    with limit_column:
        limits = compare_slo.choose(documents, [st.container(), st.container()])
    best = slo.best_levels(whole, limits)
    with chart:
        limited, names = bool(limits.latency_limits), [result.name for result in shown.variants]
        groups = side_by_side.comparable_groups(views)
        if len(groups) > 1:
            st.warning(side_by_side.APART, icon=":material/warning:")
        parts = {under: side_by_side.group_document(whole, views, own) for under, own in groups.items()}
        for number, (under, part) in enumerate(parts.items()):
            inside = {result.name for result in part.variants}
            if len(groups) > 1:
                st.markdown(f"**{plain(under)}**")
            front = tradeoffs.pareto(part, theme, [name for name in names if name in inside])
            ringed = compare_slo.with_rings(front, [at for at in best if limited and at.variant in inside], theme)
            charts.show(ringed, f"compare-pareto-{number}" if number else "compare-pareto")
        st.caption(
            "Up and to the right is better. The number at a mark is its concurrency; marks off the front are pale."
        )
        elsewhere = [load_words.evaluation_elsewhere(view.document, address.current()) for view in views]
        for sentence in dict.fromkeys(filter(None, elsewhere)):
            st.caption(message(sentence))
    for under, part in parts.items():  # what cannot be compared is not ranked in one table
        if len(groups) > 1:
            st.markdown(f"**{plain(under)}**")
        inside = {result.name for result in part.variants}
        rows = compare_slo.rows([at for at in best if at.variant in inside], limits.percentile)
        st.dataframe(rows, hide_index=True, alt="The best measured level of each variant within the limits")
    losses = {result.name: result.quality.kl_mean if result.quality else None for result in whole.variants}
    if over := load_words.floor_sentence(losses, address.current().max_kl):
        st.warning(message(over), icon=":material/warning:")
    st.caption(
        "The most output tokens/s of each variant within these limits, at measured levels: nothing is interpolated."
    )
for number, (under, part) in enumerate(parts.items()):
    lines = chart_selection.select_variants(part, [result.name for result in part.variants if result.name in names])
    end = f"-{number}" if number else ""
    if len(groups) > 1:
        st.markdown(f"**{plain(under)}**")
    left, right = st.columns(2)
    with left:
        charts.show(drawn.price(lines, "per_million_output", theme), f"compare-price{end}")
    with right:
        charts.show(drawn.latency(lines, "ttft_ms", "p50", theme), f"compare-ttft{end}")
    if sentence := side_by_side.cheapest_sentence(part):
        st.markdown(sentence)

only = st.toggle("Differences only", True, key="compare_differences", bind="query-params")
rows = side_by_side.condition_rows(views, only=only)
st.subheader("Test conditions")
if rows:
    st.dataframe(rows, hide_index=True, alt="Conditions of each evaluation")
else:
    st.caption("All recorded conditions are the same.")
st.subheader("Figures")
st.dataframe(
    figure_tables.rounded_rows(side_by_side.table(whole, only=only)),
    hide_index=True,
    alt="Every metric, one row per variant and concurrency",
)
if len(views) > 1:
    st.caption(
        "Evaluations were measured separately, so there is no test between them: a verdict holds within one evaluation."
    )

imported_results.show(opened, whole)

st.subheader("Verdicts")
for view, title, (what_if, document) in zip(views, side_by_side.titles(views), what_ifs, strict=True):
    st.markdown(f"**{plain(title)}**")
    foremost = chart_selection.select_variants(view.document, chart_selection.choose_foremost(view.document))
    verdict_panel.show_details(view.document, foremost)
    navigation.link("evaluate", "Open the evaluation", ":material/open_in_new:", id=view.id)
    evaluation_page.downloads(opened, view, what_if, document)
with copied:  # after all fields have written what they say into the address
    what_if_url.show_link()
