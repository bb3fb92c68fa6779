// How what is shown becomes what it is now: all views are drawn through here.
// Invariant: what somebody presses stays what and where it is until the press is over, for a second at most; and what
// is drawn anew as it was is the same element, with what somebody has come to, typed or selected in it.

// A press that takes longer is none, or its end never comes.
const PRESS_LIMIT = 1_000;

// After a finger's end its click comes by itself, as soon as the browser knows that it is not the first of two.
const CLICK_LIMIT = 100;

let pressed = 0;
const waiting = new Map(); // by element: how it is drawn; the last one is all that anybody would see

function hold(limit) {
  clearTimeout(pressed);
  pressed = setTimeout(release, limit);
}

function release() {
  clearTimeout(pressed);
  pressed = 0;
  const drawn = [...waiting];
  waiting.clear();
  for (const [element, draw] of drawn) drawNow(element, draw);
}

// Further fingers press nothing, and must not hold it for longer.
addEventListener("pointerdown", ({ isPrimary }) => isPrimary && hold(PRESS_LIMIT), true);
for (const end of ["pointerup", "pointercancel"])
  addEventListener(end, ({ isPrimary }) => isPrimary && pressed && hold(CLICK_LIMIT), true);
addEventListener("click", release);

function redraw(element, draw) {
  if (pressed) waiting.set(element, draw);
  else drawNow(element, draw);
}

// Whoever has come to something by keys stays there, even where it is another element now.
function drawNow(element, draw) {
  const active = element.contains(document.activeElement) ? document.activeElement : null;
  draw();
  if (active && document.activeElement !== active) focusOn(element, markOf(active));
}

const markOf = (element) => element.dataset.key ?? element.getAttribute("href");

function focusOn(element, mark) {
  if (!mark) return;
  const [key, href] = ["data-key", "href"].map((name) => `[${name}="${CSS.escape(mark)}"]`);
  (element.querySelector(key) ?? element.querySelector(href))?.focus({ preventScroll: true });
}

const nodesOf = (children) =>
  children
    .flat(Infinity)
    .filter(isSomething)
    .map(asNode)
    .map((child) => (child instanceof Node ? child : document.createTextNode(child)));

// Something else in its place.
function replace(element, ...children) {
  redraw(element, () => element.replaceChildren(...nodesOf(children)));
}

// The same as it is now. What an element does has to follow from its attributes: of two that are equal, the old stays.
function renew(element, ...children) {
  redraw(element, () => settle(element, nodesOf(children)));
}

function settle(element, fresh) {
  const known = [...element.childNodes];
  const next = kept(known, fresh);
  known.filter((node) => !next.includes(node)).forEach((node) => node.remove());
  next.forEach((node, index) => {
    if (element.childNodes[index] !== node) element.insertBefore(node, element.childNodes[index] ?? null);
  });
}

// For each that is wanted: the equal one that is there, in their order; else one of its kind between those, of which
// only that is changed which differs; else itself.
function kept(known, fresh) {
  let from = 0;
  const equal = fresh.map((child) => {
    const at = known.findIndex((node, index) => index >= from && (node === child || node.isEqualNode(child)));
    if (at >= 0) from = at + 1;
    return at;
  });
  from = 0;
  return fresh.map((child, index) => {
    if (equal[index] >= 0) from = equal[index] + 1;
    if (equal[index] >= 0) return known[equal[index]];
    const end = equal.find((at, later) => later > index && at >= 0) ?? known.length;
    const node = from < end ? known[from++] : null;
    if (!node || fresh.includes(node) || !isOfItsKind(node, child)) return child;
    settle(node, [...child.childNodes]);
    return node;
  });
}

// What stands in the page already is nobody else's kind.
const isOfItsKind = (node, child) =>
  node instanceof Element && !child.isConnected && node.cloneNode().isEqualNode(child.cloneNode());
