"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const charts = read("charts"), palette = read("palette");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const buttons = [...document.querySelectorAll("[data-choice]")];
  const config = { responsive: true, displaylogo: false, scrollZoom: false, modeBarButtons: [["toImage"]] };
  const chosen = new Set(buttons.filter((button) => button.getAttribute("aria-pressed") === "true").map((button) => button.dataset.choice));

  // Figures come in the colours of the light theme. Only what is a colour is changed, never a word that reads like one.
  const isColour = (name) => name.toLowerCase().endsWith("color");
  const inDark = (value, name) => {
    if (Array.isArray(value)) return value.map((each) => inDark(each, name));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([own, each]) => [own, inDark(each, own)]));
    return isColour(name) ? palette[value] ?? value : value;
  };

  // The page has the title as a caption; dragging is left to the page, so that a finger scrolls it.
  const fitted = ({ data, layout }) =>
    ({ ...layout, title: { text: "" }, dragmode: false, height: data.length ? Math.max(330, layout.height > 360 ? layout.height : 0) : 130, margin: { ...layout.margin, t: 24, b: data.length ? layout.margin.b : 24 } });

  const draw = (plot) => {
    const { choices } = charts[plot.dataset.chart];
    const name = Object.keys(choices).find((each) => chosen.has(each)) ?? Object.keys(choices)[0];
    const choice = choices[name];
    const figure = dark.matches ? inDark(choice.figure, "") : structuredClone(choice.figure);
    const where = `<br>${figure.layout.meta?.provenance ?? ""}`;
    figure.data.forEach((trace) => { if (Array.isArray(trace.hovertext)) trace.hovertext = trace.hovertext.map((said) => said.replace(/\x1f$/, () => where)); });
    plot.setAttribute("aria-label", choice.alt);
    Plotly.react(plot, figure.data, fitted(figure), config);
  };
  const drawAll = () => document.querySelectorAll(".plot").forEach(draw);

  buttons.forEach((button) => button.addEventListener("click", () => {
    const group = buttons.filter((other) => other.parentElement === button.parentElement);
    group.forEach((other) => {
      other.setAttribute("aria-pressed", String(other === button));
      chosen.delete(other.dataset.choice);
    });
    chosen.add(button.dataset.choice);
    drawAll();
  }));
  dark.addEventListener("change", drawAll);
  drawAll();
})();
