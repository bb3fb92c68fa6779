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
    .map((child) => (child instanceof Node ? child : document.createTextNode(visible(child))));

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
  const stays = new Set(next);
  known.filter((node) => !stays.has(node)).forEach((node) => node.remove());
  next.forEach((node, index) => {
    if (element.childNodes[index] !== node) element.insertBefore(node, element.childNodes[index] ?? null);
  });
}

// For each that is wanted: the equal one that is there, in their order; else one of its kind between those, of which
// only that is changed which differs; else itself.
function kept(known, fresh) {
  const equal = equals(known, fresh);
  const wanted = new Set(fresh);
  const ends = following(equal, known.length);
  let from = 0;
  return fresh.map((child, index) => {
    if (equal[index] !== undefined) from = equal[index] + 1;
    if (equal[index] !== undefined) return known[equal[index]];
    const node = from < ends[index] ? known[from++] : null;
    if (!node || wanted.has(node) || !isOfItsKind(node, child)) return child;
    settle(node, [...child.childNodes]);
    return node;
  });
}

// Where the equal of each is among those that are known, in their order: nothing that is long is searched for each.
function equals(known, fresh) {
  const places = new Map();
  known.forEach((node, index) => {
    const look = markup(node);
    if (!places.has(look)) places.set(look, []);
    places.get(look).push(index);
  });
  let from = 0;
  return fresh.map((child) => {
    const all = places.get(markup(child)) ?? [];
    while (all.length > 0 && all[0] < from) all.shift();
    if (all.length > 0) from = all[0] + 1;
    return all.shift();
  });
}

// Behind each: where the next one is that has a place.
function following(places, end) {
  const next = [];
  for (let at = places.length - 1; at >= 0; at -= 1) {
    next[at] = end;
    end = places[at] ?? end;
  }
  return next;
}

const markup = (node) => node.outerHTML ?? `text ${node.data}`;

// What stands in the page already is nobody else's kind.
const isOfItsKind = (node, child) =>
  node instanceof Element && !child.isConnected && node.cloneNode().isEqualNode(child.cloneNode());
