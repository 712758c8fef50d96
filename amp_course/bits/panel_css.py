"""The style sheet of `BitExplorer`, in the colours of the page's theme.

A bit's button holds its name, for screen readers, at font size 0. The visible 0 or 1 comes from the
style sheet, so it changes the moment the button is clicked, before the kernel knows about it.
"""

from __future__ import annotations

from amp_course.kit.colours import FIELDS

TINT = "59"  # the alpha of a field's colour behind text: readable on white and on black

_TINTS = "".join(
    f".amp-bits .amp-{field} {{--amp-solid:{colour};--amp-tint:{colour}{TINT}}}"
    for field, (colour, _) in FIELDS.items()
)
_RULES = """
.amp-bits .amp-field {flex-flow:row wrap; overflow:visible}
.amp-bits .amp-group {flex:0 0 auto; max-width:100%; margin:2px 12px 2px 0; overflow:visible}
.amp-bits .amp-name {font-size:12px; height:20px; margin:0; white-space:nowrap; color:var(--jp-ui-font-color1,#222)}
.amp-bits .amp-name .widget-html-content {line-height:20px}
.amp-bits .amp-name b {border-bottom:3px solid var(--amp-solid); padding:0 1px}
.amp-bits .amp-nibbles {flex-flow:row wrap; overflow:visible}
.amp-bits .amp-nibble {flex:0 0 auto; margin-right:5px; overflow:visible}
.amp-bits .jupyter-button.amp-bit {
  display:flex; align-items:center; justify-content:center; width:20px; min-width:0; height:30px; margin:1px; padding:0;
  border-radius:3px; font-size:0; color:var(--jp-ui-font-color1,#222); box-shadow:none;
  background:var(--jp-layout-color1,#fff); border:1px solid var(--jp-border-color1,#bbb);
  border-bottom:4px solid var(--amp-solid)}
.amp-bits.amp-roomy .jupyter-button.amp-bit {width:32px; height:40px}
.amp-bits .jupyter-button.amp-bit::before {content:"0"; content:"0" / "0, "; font:15px/1 var(--jp-code-font-family,monospace)}
.amp-bits.amp-roomy .jupyter-button.amp-bit::before {font-size:19px}
.amp-bits .jupyter-button.amp-bit.mod-active {background:var(--amp-tint); border-color:var(--amp-solid)}
.amp-bits .jupyter-button.amp-bit.mod-active::before {content:"1"; content:"1" / "1, "; font-weight:bold}
.amp-bits .jupyter-button.amp-bit:hover {box-shadow:0 0 0 1px var(--amp-solid)}
.amp-bits .jupyter-button.amp-bit:focus-visible {outline:2px solid var(--jp-brand-color1,#1976d2); outline-offset:1px}
.amp-bits .jupyter-button.amp-pick {width:auto; padding:0 10px; height:24px; line-height:24px}
.amp-bits .widget-html-content {min-width:0}
.amp-bits .amp-refused {display:block; border-left:4px solid #D55E00; padding-left:8px}
.amp-bits .amp-message .widget-html-content {line-height:1.5}
.amp-bits .amp-hint {margin-left:10px; color:var(--jp-ui-font-color2,#666)}
.amp-bits-view {line-height:1.45; width:100%; overflow-x:auto; container-type:inline-size}
.amp-bits-view .amp-value {font-size:26px; line-height:34px; font-weight:600; overflow-wrap:anywhere}
.amp-bits-view .amp-facts {display:flex; flex-flow:row wrap; align-items:baseline; gap:0 22px; margin:0 0 6px}
.amp-bits-view .amp-reading {display:flex; flex-flow:row wrap; gap:0 24px}
.amp-bits-view .amp-line {flex:1 1 400px; max-width:560px}
.amp-bits-view .amp-facts b {font-weight:600; overflow-wrap:anywhere}
.amp-bits-view .amp-facts i {font-style:normal}
.amp-bits-view .amp-facts i, .amp-bits-view p {color:var(--jp-ui-font-color2,#666)}
.amp-bits-view p {margin:0 0 8px}
.amp-bits-view code {font-size:inherit; background:none; padding:0}
.amp-bits-view table {border-collapse:collapse; margin:0 0 4px; font-size:13px}
.amp-bits-view .amp-fields :is(td, th) {
  padding:2px 5px; text-align:center; font-family:var(--jp-code-font-family,monospace); font-weight:normal; white-space:nowrap}
.amp-bits-view .amp-fields tr > th:first-child {
  text-align:left; color:var(--jp-ui-font-color2,#666); font-family:inherit; padding-left:0}
.amp-bits-view .amp-fields span {
  display:block; padding:1px 8px; background:var(--amp-tint); border-bottom:3px solid var(--amp-solid)}
.amp-bits-view .amp-fields th span {background:none; font-family:var(--jp-ui-font-family,sans-serif)}
.amp-bits-view .amp-fields .amp-end {text-align:left; font-weight:bold}
.amp-bits-view .amp-formats {width:100%; font-size:12px; white-space:nowrap}
.amp-bits-view .amp-formats :is(td, th) {
  padding:1px 9px 1px 0; text-align:left; font-weight:normal; border-bottom:1px solid var(--jp-border-color2,#ddd)}
.amp-bits-view .amp-formats thead th {color:var(--jp-ui-font-color2,#666); white-space:normal}
.amp-bits-view .amp-formats i {
  display:inline-block; width:9px; height:9px; margin:0 6px 0 2px; outline:1px solid var(--jp-border-color1,#bbb)}
.amp-bits-view .amp-formats .amp-current > * {background:var(--jp-layout-color2,#eee)}
.amp-bits-view .amp-formats .amp-current > th {font-weight:bold}
@container (max-width: 600px) {
  .amp-bits-view .amp-hex {display:none}
  .amp-bits-view .amp-formats :is(td, th) {padding-right:6px}
  .amp-bits-view .amp-fields :is(td, th) {padding:2px; font-size:12px}
  .amp-bits-view .amp-fields span {padding:1px 5px}
}
"""
SHEET = _TINTS + _RULES
