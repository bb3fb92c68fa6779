// How what is shown becomes what it is now: all views are drawn through here.
// Invariant: what a user presses stays what and where it is until the press is over, for a second at most; and what is
// drawn anew as it was is the same element, with what the user has come to, typed or selected in it.

// A press that takes longer is none, or its end never comes.
const PRESS_LIMIT = 1_000;

// After a finger's end its click comes by itself, as soon as the browser knows that it is not the first of two.
const CLICK_LIMIT = 100;

let pressed = 0;
const waiting = new Map(); // by element: how it is drawn; the last one is all that a reader would see

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
// Behind what a click does by itself: what it opens, sends or leads to has to be there still.
addEventListener("click", () => pressed && hold(0));

function redraw(element, draw) {
  if (pressed) waiting.set(element, draw);
  else drawNow(element, draw);
}

// Whoever has come to something by keys stays there, even where it is another element now;
// and around it where it is gone.
function drawNow(element, draw) {
  const active = element.contains(document.activeElement) ? document.activeElement : null;
  draw();
  if (active && document.activeElement !== active) focusOn(element, markOf(active));
}

const markOf = (element) => element.dataset.key ?? element.getAttribute("href");

function focusOn(element, mark) {
  const [key, href] = ["data-key", "href"].map((name) => `[${name}="${CSS.escape(mark ?? "")}"]`);
  const there = mark && (element.querySelector(key) ?? element.querySelector(href));
  (there || element.closest("[tabindex]"))?.focus({ preventScroll: true });
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
  let place = element.firstChild;
  for (const node of next) {
    if (node === place) place = place.nextSibling;
    else element.insertBefore(node, place);
  }
}

// For each that is wanted: the one that is there with its key or its look, in their order; else the next one between
// those. Of what is of its kind only that is changed which differs; else it is itself.
function kept(known, fresh) {
  const equal = equals(known, fresh);
  const wanted = new Set(fresh);
  const ends = following(equal, known.length);
  let from = 0;
  return fresh.map((child, index) => {
    const place = equal[index] ?? (from < ends[index] ? from : null);
    if (place === null) return child;
    from = place + 1;
    const node = known[place];
    if (node === child || node.isEqualNode(child)) return node;
    if (wanted.has(node) || !isOfItsKind(node, child)) return child;
    settle(node, [...child.childNodes]);
    // What a user has typed over it stays.
    if (child.hasAttribute("value")) node.setAttribute("value", child.getAttribute("value"));
    return node;
  });
}

// Where the equal of each is among those that are known, in their order: nothing that is long is searched for each.
function equals(known, fresh) {
  const places = new Map();
  known.forEach((node, index) => {
    const look = lookOf(node);
    if (!places.has(look)) places.set(look, []);
    places.get(look).push(index);
  });
  let from = 0;
  return fresh.map((child) => {
    const all = places.get(lookOf(child)) ?? [];
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

const lookOf = (node) => node.dataset?.key ?? node.outerHTML ?? `text ${node.data}`;

// An element that stands in the page already is of no other's kind.
const isOfItsKind = (node, child) =>
  node instanceof Element && child instanceof Element && !child.isConnected && bare(node).isEqualNode(bare(child));

// What a user opens or types in it does not make it another kind.
function bare(element) {
  const alone = element.cloneNode();
  for (const own of ["open", "value"]) alone.removeAttribute(own);
  return alone;
}
