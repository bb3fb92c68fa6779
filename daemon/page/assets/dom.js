// Elements of the page, made one by one.
// Invariant: all data from the API is text; none of it is ever read as markup, as an attribute's name or as code.

const SVG = "http://www.w3.org/2000/svg";

// h("p", {class: "note"}, "text", child): undefined, null and false are skipped.
function h(name, properties, ...children) {
  return filled(document.createElement(name), properties, children);
}

function svg(name, properties, ...children) {
  return filled(document.createElementNS(SVG, name), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : SPOKEN.has(name) ? visible(value) : String(value));
  }
  element.append(...children.flat(Infinity).filter(isSomething).map(asNode));
  return element;
}

// Attributes that people read or hear.
const SPOKEN = new Set(["title", "aria-label"]);

const isSomething = (child) => child !== undefined && child !== null && child !== false;
const asNode = (child) => (child instanceof Node ? child : visible(child));

// A name that a tenant chose: it cannot turn the text around it.
function name(text) {
  return h("bdi", {}, text);
}

// Shows invisible characters, and those that turn the direction of writing, as their codes. All text and all spoken
// labels pass here; code that writes elsewhere must call it.
function visible(text) {
  return String(text).replace(
    /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu,
    (character) => `\\u{${character.codePointAt(0).toString(16)}}`,
  );
}

// A table with cells of anything that h() takes; the first cell of a row is its head.
function table(caption, heads, rows) {
  if (rows.length === 0) return h("p", { class: "nothing" }, `${caption}: none.`);
  const cells = (row) =>
    row.map((cell, column) => h(column === 0 ? "th" : "td", column === 0 ? { scope: "row" } : {}, cell));
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", {}, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map((head) => h("th", { scope: "col" }, head)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) => h("tr", {}, cells(row))),
      ),
    ),
  );
}

// Facts about one thing: names and values, without empty ones.
function facts(pairs) {
  const known = pairs.filter(([, value]) => isSomething(value) && value !== "");
  return h(
    "dl",
    {},
    known.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))),
  );
}
