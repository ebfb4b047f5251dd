// SPDX-License-Identifier: Apache-2.0
// What pages do: draw charts (drawing.js), sort tables. Texts are data: they are set as text, never as markup.
"use strict";

const charts = JSON.parse(document.getElementById("charts").textContent);

function sortTable(button) {
  const head = button.closest("th");
  const body = head.closest("table").tBodies[0];
  const column = head.cellIndex;
  const down = head.getAttribute("aria-sort") !== "descending";
  const value = (row) => {
    const text = row.cells[column].dataset.value ?? row.cells[column].textContent;
    const number = Number.parseFloat(text.replaceAll(",", ""));
    return Number.isNaN(number) ? text : number;
  };
  const before = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
  const rows = [...body.rows].sort((a, b) => before(value(a), value(b)) * (down ? -1 : 1));
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows);
}

for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => sortTable(button));

Promise.all(
  Object.entries(charts).map(([key, spec]) => {
    const place = document.getElementById(`chart-${key}`);
    return drawn(place, spec).then((result) => [key, result.view]);
  }),
).then((views) => {
  window.mcugenViews = Object.fromEntries(views);
  document.documentElement.dataset.drawn = "yes";
});
