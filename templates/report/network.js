// SPDX-License-Identifier: Apache-2.0
// A node that is looked at shows its counterparts, and all of its text. Names are data: they are set as text.
"use strict";

const nodes = [...document.querySelectorAll(".network li")].map((item) => ({
  item,
  side: item.closest("section"),
  origin: new Set(JSON.parse(item.dataset.origin)),
}));
const told = document.getElementById("told");

function show(node) {
  for (const other of nodes) {
    const related = other.side !== node.side && [...node.origin].some((name) => other.origin.has(name));
    other.item.classList.toggle("shown", other === node || related);
  }
  const from = node.origin.size ? ` from ${[...node.origin].join(", ")}` : "";
  told.textContent = node.item.innerText.replaceAll("\n", "  ") + from;
}

for (const node of nodes) {
  node.item.addEventListener("mouseenter", () => show(node));
  node.item.addEventListener("focus", () => show(node));
}
document.documentElement.dataset.drawn = "yes";
