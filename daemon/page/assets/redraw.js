// How the shown page becomes the current one: all views are drawn through here.
// Invariant: an element under a press stays the same and in place until the press ends, for a second at most; and an
// unchanged part keeps its elements, with the user's focus, input and selection.

// A longer press is none, or its end never comes.
const PRESS_LIMIT = 1_000;

// After a finger's end its click comes by itself, once the browser rules out a double tap.
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

// Further fingers press nothing, and must not extend the hold.
addEventListener("pointerdown", ({ isPrimary }) => isPrimary && hold(PRESS_LIMIT), true);
for (const end of ["pointerup", "pointercancel"])
  addEventListener(end, ({ isPrimary }) => isPrimary && pressed && hold(CLICK_LIMIT), true);
// After the click's own action: its target must still be there.
addEventListener("click", () => pressed && hold(0));

function redraw(element, draw) {
  if (pressed) waiting.set(element, draw);
  else drawNow(element, draw);
}

// Keyboard focus stays on its target, even if that is another element now;
// and near it if it is gone.
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

// Replaces the children by others.
function replace(element, ...children) {
  redraw(element, () => element.replaceChildren(...nodesOf(children)));
}

// Updates the children. An element's behaviour must follow from its attributes: of two equal ones, the old one stays.
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

// For each wanted child: the existing node with its key or its look, in their order; else the next one between those. A
// node of the same kind is updated in place; otherwise the new one is used.
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
    // The user's input over it stays.
    if (child.hasAttribute("value")) node.setAttribute("value", child.getAttribute("value"));
    return node;
  });
}

// The place of each one's equal among the known nodes, in their order: no long list is searched for each.
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

// For each place: the next one that is set.
function following(places, end) {
  const next = [];
  for (let at = places.length - 1; at >= 0; at -= 1) {
    next[at] = end;
    end = places[at] ?? end;
  }
  return next;
}

const lookOf = (node) => node.dataset?.key ?? node.outerHTML ?? `text ${node.data}`;

// An element that is already in the page matches no other.
const isOfItsKind = (node, child) =>
  node instanceof Element && child instanceof Element && !child.isConnected && bare(node).isEqualNode(bare(child));

// A user's opening or typing does not change the kind.
function bare(element) {
  const alone = element.cloneNode();
  for (const own of ["open", "value"]) alone.removeAttribute(own);
  return alone;
}
