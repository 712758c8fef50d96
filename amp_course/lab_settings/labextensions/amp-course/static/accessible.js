// What JupyterLab 4 and ipywidgets 8 leave out for readers who use a screen reader. Plain JavaScript, no build step:
//
// - an image's alt text, which IPython puts into an output's metadata ({"image/png": {"alt": "…"}}) and JupyterLab ignores;
// - a slider's name and value in words: ipywidgets shows both beside the handle and tells neither to the handle.

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

function nameSliders() {
  const watch = { childList: true, subtree: true, attributes: true, attributeFilter: ["aria-valuetext"] };
  new MutationObserver(() => document.querySelectorAll(".widget-slider .noUi-handle").forEach(nameSlider)).observe(
    document.body,
    watch,
  );
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
      nameSliders();
    };
    const plugin = { id: "amp-course:accessible", autoStart: true, requires: [IRenderMimeRegistry], activate };
    return () => ({ __esModule: true, default: plugin });
  },
};
