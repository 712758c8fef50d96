// Panels that move in the book: the course's own Python, run by Pyodide in the reader's browser.
// The page already shows a panel's first state; Python is loaded when the reader first touches one.
(() => {
  const base = new URL(".", document.currentScript.src);
  let started; // a promise of live.py's Page
  const waiting = []; // what was touched before Python was there
  const typing = new WeakSet(); // fields with a text that was not sent yet

  async function start(root) {
    if (location.protocol === "file:") {
      throw new Error("a page opened from a folder may not start Python. Serve the folder, by "
        + "“python -m http.server”, or open the book on the web");
    }
    if (typeof WebAssembly === "undefined") {
      throw new Error("this browser has WebAssembly switched off, which Python needs here");
    }
    const { loadPyodide } = await import(new URL(`${root.dataset.python}/pyodide.mjs`, base));
    const [pyodide, answer] = await Promise.all([
      loadPyodide(), fetch(new URL(root.dataset.code, base)),
    ]);
    pyodide.unpackArchive(await answer.arrayBuffer(), "zip");
    const live = pyodide.pyimport("live");
    live.install();
    return live.Page();
  }

  function tell(root, text) {
    root.querySelector(".amp-state").textContent = text;
  }

  async function ready(root) {
    if (!started) {
      tell(root, "Starting Python in your browser …");
      started = start(root);
    }
    try {
      const page = await started;
      if (root.dataset.live === undefined) {
        const recorded = root.dataset.recorded;
        root.recorded = recorded ? await (await fetch(new URL(recorded, base))).text() : "";
        root.dataset.live = "";
        tell(root, "");
      }
      return page;
    } catch (error) {
      started = undefined;
      tell(root, `This panel cannot move here: ${error.message}.`);
    }
  }

  async function touch(root, key, value) {
    const last = waiting.at(-1);
    if (last && last.root === root && last.key === key && key.type === "range") waiting.pop();
    waiting.push({ root, key, value });
    const page = await ready(root);
    while (page && waiting.length) {
      const one = waiting.shift();
      const { panel } = one.root.dataset;
      const place = [...document.querySelectorAll(".amp-live")].indexOf(one.root);
      try {
        const html = page.touch(place, panel, one.root.recorded, one.key.dataset.key, one.value);
        const made = document.createElement("template");
        made.innerHTML = html;
        morph(one.root.querySelector(".amp-panel"), made.content.firstElementChild);
      } catch (error) {
        tell(one.root, `The panel stopped: ${String(error.message).trim().split("\n").at(-1)}`);
      }
    }
    if (!page) waiting.length = 0;
  }

  // Turn one element into another and keep what is the same, with the reader's focus in it.
  function morph(from, to) {
    if (from.nodeName !== to.nodeName) return from.replaceWith(to);
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.data !== to.data) from.data = to.data;
      return;
    }
    for (const { name } of [...from.attributes]) if (!to.hasAttribute(name)) from.removeAttribute(name);
    for (const { name, value } of to.attributes) {
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
    const [old, made] = [[...from.childNodes], [...to.childNodes]];
    made.forEach((child, place) => (old[place] ? morph(old[place], child) : from.append(child)));
    old.slice(made.length).forEach((child) => child.remove());
    const own = from.nodeName === "INPUT" && !typing.has(from);
    if (own && from.value !== to.value) from.value = to.value;
    if (from.nodeName === "OPTION") from.selected = to.hasAttribute("selected");
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const root of document.querySelectorAll(".amp-live")) tell(root, "");
  });
  const panelOf = (event) => event.target.closest?.(".amp-live");
  for (const kind of ["pointerdown", "focusin"]) {
    document.addEventListener(kind, (event) => panelOf(event) && ready(panelOf(event)));
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.(".amp-live button[data-key]");
    if (button) touch(panelOf(event), button, button.value);
  });
  document.addEventListener("input", (event) => {
    const { target } = event;
    if (panelOf(event)) typing.add(target);
    if (!panelOf(event) || target.type !== "range") return;
    if (!("late" in target.dataset)) touch(panelOf(event), target, target.value);
  });
  document.addEventListener("change", (event) => {
    const { target } = event;
    typing.delete(target);
    if (!panelOf(event) || (target.type === "range" && !("late" in target.dataset))) return;
    touch(panelOf(event), target, target.value);
  });
})();
