// SPDX-License-Identifier: Apache-2.0
// What the page does in the browser: sends dropped files, draws charts. Texts are data: they are set as text.
"use strict";

function tell(text, isBad) {
  const status = document.getElementById("upload-status");
  if (!status) return;
  status.textContent = text;
  status.classList.toggle("bad", Boolean(isBad));
}

async function put(url, body, method) {
  const answer = await fetch(url, { method: method || "PUT", body });
  if (!answer.ok) throw new Error(await answer.text());
}

// Sends the files of one drop, one after the other: [{ path, file }]. Samples of one drop belong together.
async function send(place, entries) {
  const limit = Number(document.body.dataset.maxUpload || Infinity);
  const folder = entries[0].path.split("/")[0].replace(/\.[A-Za-z0-9]+$/, "");
  try {
    const large = entries.find((entry) => entry.file.size > limit);
    if (large) throw new Error(`${large.path} has more than ${limit.toLocaleString("en")} bytes. Drop a smaller file.`);
    for (const [index, { path, file }] of entries.entries()) {
      tell(`Sending ${path} (${index + 1} of ${entries.length}) …`);
      const below = (place === "samples" ? path : file.name).split("/").map(encodeURIComponent).join("/");
      await put(`/upload/${place}/${place === "samples" ? `${encodeURIComponent(folder)}/` : ""}${below}`, file);
    }
    if (place === "samples") await put(`/upload/samples/${encodeURIComponent(folder)}`, null, "POST");
    tell(entries.length === 1 ? `${entries[0].path} has arrived.` : `${entries.length} files have arrived.`);
  } catch (error) {
    tell(error.message, true);
  }
}

async function filesOf(entry, prefix) {
  const path = prefix + entry.name;
  if (entry.isFile) return [{ path, file: await new Promise((done, fail) => entry.file(done, fail)) }];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((done, fail) => reader.readEntries(done, fail)); // at most 100 at a time
    if (!some.length) return found;
    for (const inner of some) if (!inner.name.startsWith(".")) found.push(...(await filesOf(inner, `${path}/`)));
  }
}

const zoneOf = (event) => event.target.closest && event.target.closest("[data-drop]");

for (const name of ["dragover", "drop"]) {
  document.addEventListener(name, async (event) => {
    const zone = zoneOf(event);
    event.preventDefault(); // A file that misses the zone must not replace the page.
    document.querySelectorAll("[data-drop]").forEach((other) => other.classList.toggle("over", name === "dragover" && other === zone));
    if (name !== "drop" || !zone) return;
    const roots = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
    const entries = (await Promise.all(roots.map((entry) => filesOf(entry, "")))).flat();
    if (entries.length) await send(zone.dataset.drop, entries);
  });
}

document.addEventListener("click", (event) => {
  const button = event.target.closest && event.target.closest("[data-pick]");
  if (button) button.closest("[data-drop]").querySelector(`input.${button.dataset.pick}`).click();
});

document.addEventListener("change", async (event) => {
  if (event.target.type !== "file") return;
  const files = [...event.target.files].map((file) => ({ path: file.webkitRelativePath || file.name, file }));
  if (files.length) await send(zoneOf(event).dataset.drop, files);
  event.target.value = "";
});

// Keeps the focus of the keyboard in a part of the page that is drawn again: it moves to the new control of this name.
let focused = null;
const nameOf = (element) => element.getAttribute("aria-label") || element.innerText.trim();
document.addEventListener("pointerdown", () => { focused = null; }, true);
document.addEventListener("focusin", ({ target }) => {
  const section = target.closest("section");
  focused = section && { element: target, section, name: nameOf(target) };
});
document.addEventListener("DOMContentLoaded", () => {
  new MutationObserver(() => {
    if (!focused || document.contains(focused.element) || document.activeElement !== document.body) return;
    const { element, section, name } = focused;
    const same = [...section.querySelectorAll(element.tagName)].find((other) => nameOf(other) === name);
    if (same) same.focus({ preventScroll: true });
  }).observe(document.body, { childList: true, subtree: true });
});

// Draws a chart in the element with an id; a click on a point tells the server which combination it is.
window.mcugenChart = async (id, spec) => {
  const place = document.getElementById(id);
  if (!place) return;
  const { view } = await drawn(place, spec);
  place.dataset.points = String(spec.data.values.length);
  view.addEventListener("click", (_, item) => {
    if (item && item.datum && item.datum.id) emitEvent("pick", item.datum.id);
  });
  const list = place.querySelector(".vega-bind select"); // by keyboard
  if (list) list.addEventListener("change", () => emitEvent("pick", list.options[list.selectedIndex].text));
};
