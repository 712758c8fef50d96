"""What a browser says of a slide: what sticks out of it, and how large its smallest letters are."""

from __future__ import annotations

from typing import Any

# Sizes of a font in pixels of a slide of 1920 × 1080, as tools/slide_parts.py derives them.
LEAST = 20.7
LEAST_RAISED = 16.9
DIGITS = 0.7  # an exponent's size, in sizes of the label that it belongs to
TICKS = 8.0  # points of the labels of axes, which are what carries exponents

MEASURE = """
() => {
  const slide = document.querySelector('.slides > section.present'), page = slide.querySelector('.page');
  slide.querySelectorAll('.fragment').forEach(one => one.classList.add('visible'));
  const box = page.getBoundingClientRect(), unit = box.height / 1080, near = 0.6 * unit;
  const between = (low, from, to, high) => low - near <= from && to <= high + near;
  const inside = r => between(box.left, r.left, r.right, box.right) && between(box.top, r.top, r.bottom, box.bottom);
  const words = node => node.textContent.trim().slice(0, 40);
  const name = one => `${one.tagName.toLowerCase()}.${one.getAttribute('class')} ${words(one)}`;
  const out = [], letters = [], figures = [];
  for (const one of page.querySelectorAll('*')) {
    const r = one.getBoundingClientRect();
    if (r.width && r.height && !inside(r)) out.push('outside: ' + name(one));
    const body = one.closest('.body');
    if (body && one !== body && r.height) {
      const b = body.getBoundingClientRect();
      if (!between(b.top, r.top, r.bottom, b.bottom)) out.push('out of the body: ' + name(one));
    }
    if (one.scrollWidth > one.clientWidth + 1 && one.clientWidth || one.scrollHeight > one.clientHeight + 1 && one.clientHeight)
      if (!['inline'].includes(getComputedStyle(one).display) && !one.closest('svg')) out.push('scrolls: ' + name(one));
    if (one.parentElement.matches('.body, .page') && one.nextElementSibling) {
      const s = one.nextElementSibling.getBoundingClientRect();
      if (s.height && r.bottom > s.top + near) out.push('overlaps: ' + name(one));
    }
  }
  const walk = document.createTreeWalker(page, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    if (!node.textContent.trim()) continue;
    const one = node.parentElement, style = getComputedStyle(one);
    if (style.display === 'none' || style.visibility === 'hidden' || one.closest('title, style, script')) continue;
    const turn = one.ownerSVGElement ? one.getScreenCTM().a / unit : 1;
    letters.push([parseFloat(style.fontSize) * turn, words(node), one.closest('sup, sub') !== null]);
    const range = document.createRange(); range.selectNodeContents(node);
    for (const r of range.getClientRects()) if (r.width && !inside(r)) out.push('letters outside: ' + words(node));
  }
  for (const image of page.querySelectorAll('img')) {
    const r = image.getBoundingClientRect();
    const scale = Math.min(r.width / image.naturalWidth, r.height / image.naturalHeight) / unit;
    figures.push({
      perInch: scale * image.naturalWidth / parseFloat(image.dataset.inches), points: parseFloat(image.dataset.points), panel: 'panel' in image.dataset,
      exponents: 'exponents' in image.dataset, alt: image.alt, loaded: image.complete && image.naturalWidth > 0,
    });
  }
  const page_ = document.documentElement;
  if (page_.scrollWidth > innerWidth || page_.scrollHeight > innerHeight) out.push('the page scrolls');
  return { out: [...new Set(out)], letters, figures, place: slide.querySelector('footer').textContent };
}
"""


def measure(page: Any) -> dict[str, Any]:
    """Measure the slide that is shown: what sticks out, and
    (size, text) of its smallest letters and exponents.
    """
    found = page.evaluate(MEASURE)
    letters = [(size, text) for size, text, raised in found["letters"] if not raised]
    raised = [(size, text) for size, text, is_raised in found["letters"] if is_raised]
    for figure in found["figures"]:
        if figure["panel"]:
            continue  # a photograph, which the speaker replaces by the panel itself
        letters.append((figure["points"] / 72 * figure["perInch"], "in the figure"))
        if figure["exponents"]:
            raised.append((DIGITS * TICKS / 72 * figure["perInch"], "an exponent in the figure"))
    return {**found, "least": min(letters), "least_raised": min(raised, default=None)}
