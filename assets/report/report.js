"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const buttons = [...document.querySelectorAll("[data-percentile]")];
  const config = { responsive: true, displaylogo: false, scrollZoom: false, modeBarButtons: [["toImage"]] };
  let percentile = "p50";

  // The page has the title as a caption; dragging is left to the page, so that a finger scrolls it.
  const fitted = ({ data, layout }) =>
    ({ ...layout, title: { text: "" }, dragmode: false, height: data.length ? 330 : 130, margin: { ...layout.margin, t: 24, b: data.length ? layout.margin.b : 24 } });

  const draw = (plot) => {
    const { choices } = charts[plot.dataset.chart];
    const choice = choices[percentile] ?? choices.any;
    const figure = structuredClone(choice[dark.matches ? "dark" : "light"]);
    plot.setAttribute("aria-label", choice.alt);
    Plotly.react(plot, figure.data, fitted(figure), config);
  };
  const drawAll = () => document.querySelectorAll(".plot").forEach(draw);

  buttons.forEach((button) => button.addEventListener("click", () => {
    percentile = button.dataset.percentile;
    buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    drawAll();
  }));
  dark.addEventListener("change", drawAll);
  drawAll();
})();
