// What JupyterLab 4 and ipywidgets 8 leave out for readers who use a screen reader, or no mouse. Plain JavaScript, no build step:
//
// - an image's alt text, which IPython puts into an output's metadata ({"image/png": {"alt": "…"}}) and JupyterLab ignores;
// - a slider's name and value in words: ipywidgets shows both next to the handle and tells neither to the handle;
// - whether a toggle button is pressed, and a control's tooltip, which is on its label only;
// - a panel's name, so that its controls are announced as a group;
// - what a panel's status line says after a change, and the outcome of a check, once its cell has run;
// - keys that belong to a control and not to the notebook around it: JupyterLab moves from cell to cell by the arrow keys and
//   has a command for nearly every letter, also while a panel's menu has the focus;
// - handles of 24 pixels, edges of controls that stand out from the page, and no motion for readers who have asked their system
//   for less of it.

let shared; // JupyterLab's own modules, by name and version

async function fromLab(name) {
  const [version] = Object.values(shared[name]);
  return (await version.get())();
}

function describeImages(rendermime) {
  for (const type of ["image/png", "image/jpeg"]) {
    const usual = rendermime.getFactory(type);
    const createRenderer = (options) => {
      const renderer = usual.createRenderer(options);
      const render = renderer.renderModel.bind(renderer);
      renderer.renderModel = async (model) => {
        await render(model);
        const alt = model.metadata[type]?.alt;
        if (alt) renderer.node.querySelector("img")?.setAttribute("alt", alt);
      };
      return renderer;
    };
    rendermime.addFactory({ ...usual, mimeTypes: [type], createRenderer });
  }
}

function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value && element.getAttribute(name) !== value) element.setAttribute(name, value);
  }
}

function nameSlider(handle) {
  const slider = handle.closest(".widget-slider");
  const label = slider.querySelector(".widget-label");
  const readout = slider.querySelector(".widget-readout");
  const name = label?.textContent.trim();
  setAttributes(handle, { "aria-label": name, "aria-valuetext": readout?.textContent });
  if (label?.title !== "null") setAttributes(handle, { "aria-description": label?.title }); // "null": it has no tooltip
  if (readout?.isContentEditable) setAttributes(readout, { role: "textbox", "aria-label": name });
}

function describeControl(label) {
  const tooltip = label.title;
  if (tooltip === "null") label.removeAttribute("title"); // ipywidgets writes that for "no tooltip"
  else if (tooltip) {
    const control = label.parentElement.querySelector("select, input");
    if (control) setAttributes(control, { "aria-description": tooltip });
  }
}

function tellPressed(button) {
  setAttributes(button, { "aria-pressed": String(button.classList.contains("mod-active")) });
}

const watched = new WeakSet();

function namePanel(panel) {
  setAttributes(panel, { role: "group", "aria-label": panel.querySelector(".amp-title")?.textContent.trim() });
  if (watched.has(panel)) return;
  watched.add(panel); // a toggle button that is pressed changes its class, and nothing else
  const changed = () => panel.querySelectorAll(".widget-toggle-button").forEach(tellPressed);
  new MutationObserver(changed).observe(panel, { subtree: true, attributes: true, attributeFilter: ["class"] });
}

// A panel replaces its status line with a new one, and most screen readers are silent about a live region that is new. So the
// words go to one region that stays. A pause lets a slider come to rest first: only its last value is told.

const PAUSE = 500; // milliseconds
const told = new WeakMap(); // panel → the words of its status lines when they were told last
const pending = new WeakMap(); // panel → the timer of what is to be told
const started = new WeakMap(); // cell → its prompt when the notebook was opened
const shown = new WeakSet(); // outcomes that were looked at
let announcer;

function announce(words) {
  announcer.textContent = words.join(" ");
}

function statusWords(panel) {
  const lines = [...panel.querySelectorAll('[role="status"]')];
  lines.forEach((line) => setAttributes(line, { "aria-live": "off" })); // or some readers would hear it twice
  return lines.map((line) => line.textContent.replace(/\s+/g, " ").trim()).filter(Boolean);
}

function followPanel(panel) {
  const words = statusWords(panel);
  const before = told.get(panel);
  if (!before) told.set(panel, words); // a panel that opens is read like any output
  else if (words.join() !== before.join()) {
    clearTimeout(pending.get(panel));
    const tell = () => {
      const now = statusWords(panel);
      const fresh = now.filter((line) => !told.get(panel).includes(line));
      told.set(panel, now);
      if (fresh.length) announce(fresh);
    };
    pending.set(panel, setTimeout(tell, PAUSE));
  }
}

function followCell(cell) {
  const prompt = cell.querySelector(".jp-InputPrompt")?.textContent;
  if (!started.has(cell)) started.set(cell, prompt);
  for (const outcome of cell.querySelectorAll('.jp-RenderedHTML [role="status"]')) {
    if (shown.has(outcome)) continue;
    shown.add(outcome);
    setAttributes(outcome, { "aria-live": "off" });
    if (prompt !== started.get(cell)) announce([outcome.textContent.replace(/\s+/g, " ").trim()]);
  }
}

// Keys without Ctrl, Alt or Cmd are the control's own, Escape leads back to the panel's cell, Shift+Enter runs it as everywhere.
function keepKeys(event) {
  const panel = event.target.closest?.(".amp-panel");
  if (!panel) return;
  const plain = !event.ctrlKey && !event.altKey && !event.metaKey && !(event.shiftKey && event.key === "Enter");
  event.target.toggleAttribute("data-lm-suppress-shortcuts", plain); // by which Lumino, below JupyterLab, lets keys alone
  if (plain && event.key === "Escape") panel.closest(".jp-Cell")?.focus();
}

const STYLE = `
.amp-panel {
  --jp-widgets-slider-handle-size: 24px;
  --jp-widgets-input-border-color: var(--jp-ui-font-color2, #666)
}
.amp-panel .widget-slider .noUi-handle {border-color: var(--jp-ui-font-color2, #666) !important}
.amp-panel .widget-slider .noUi-handle:focus-visible {outline: 2px solid var(--jp-brand-color1, #1976d2); outline-offset: 2px}
.amp-announcer {position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap}
@media (prefers-reduced-motion: reduce) {
  .amp-panel, .amp-panel *, .amp-panel *::before, .amp-panel *::after {
    transition: none !important; animation: none !important; scroll-behavior: auto !important
  }
}`;

function addToPage() {
  const style = document.createElement("style");
  style.textContent = STYLE;
  document.head.append(style);
  announcer = document.createElement("div");
  announcer.className = "amp-announcer";
  announcer.setAttribute("aria-live", "polite");
  document.body.append(announcer);
  window.addEventListener("keydown", keepKeys, true); // before JupyterLab, which listens on the document
}

function look() {
  document.querySelectorAll(".widget-slider .noUi-handle").forEach(nameSlider);
  document.querySelectorAll(".jupyter-widgets > .widget-label[title]").forEach(describeControl);
  document.querySelectorAll(".widget-toggle-button").forEach(tellPressed);
  document.querySelectorAll(".amp-panel").forEach(namePanel);
  document.querySelectorAll(".amp-panel").forEach(followPanel);
  document.querySelectorAll(".jp-CodeCell").forEach(followCell);
}

function nameWidgets() {
  addToPage();
  const watch = { childList: true, subtree: true, attributes: true, attributeFilter: ["aria-valuetext"] };
  new MutationObserver(look).observe(document.body, watch);
}

globalThis._JUPYTERLAB ??= {};
globalThis._JUPYTERLAB["amp-course"] = {
  init: (scope) => {
    shared = scope;
  },
  get: async () => {
    const { IRenderMimeRegistry } = await fromLab("@jupyterlab/rendermime");
    const activate = (app, rendermime) => {
      describeImages(rendermime);
      nameWidgets();
    };
    const plugin = { id: "amp-course:accessible", autoStart: true, requires: [IRenderMimeRegistry], activate };
    return () => ({ __esModule: true, default: plugin });
  },
};
