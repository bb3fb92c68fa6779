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

// A table with cells of anything that h() takes; the first cell of a row is its head. Rows come in the order of the
// daemon until a reader sorts them by a column.
function table(caption, heads, rows) {
  if (rows.length === 0) return h("p", { class: "nothing" }, `${caption}: none.`);
  const cells = (row) =>
    row.map((cell, column) => h(column === 0 ? "th" : "td", column === 0 ? { scope: "row" } : {}, cell));
  const lines = rows.map((row) => h("tr", {}, cells(row)));
  const order = sorts.get(caption);
  const head = (text, column) => sortHead(text, order?.column === column && order, rows.length > 1, sortTable);
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, heads.map(head))),
      h("tbody", {}, order ? sortedLines(lines, order) : lines),
    ),
  );
}

// By the caption of a table: the column and the direction that a reader chose.
const sorts = new Map();
const ORDERS = { false: "ascending", true: "descending" };

// The head of a column: a button that sorts by it, unless there is nothing to sort.
function sortHead(text, order, isSortable, onclick) {
  const sign = order && h("span", { "aria-hidden": "true" }, order.isDown ? " ▼" : " ▲");
  return h(
    "th",
    { scope: "col", "aria-sort": order && ORDERS[order.isDown] },
    isSortable && text ? h("button", { type: "button", class: "sort", onclick }, text, sign) : text,
  );
}

function sortTable({ currentTarget }) {
  const grid = currentTarget.closest("table");
  const heads = [...grid.tHead.rows[0].cells];
  const column = heads.indexOf(currentTarget.closest("th"));
  const lines = [...grid.tBodies[0].rows];
  const caption = grid.caption.textContent;
  const last = sorts.get(caption);
  // What is large or new is looked for first.
  const isDown = last?.column === column ? !last.isDown : !isWord(lines[0].cells[column]);
  const order = { column, isDown };
  sorts.set(caption, order);
  grid.tBodies[0].append(...sortedLines(lines, order));
  heads.forEach((head, index) => {
    const text = head.textContent.replace(/ [▲▼]$/u, "");
    head.replaceWith(sortHead(text, index === column && order, true, sortTable));
  });
  grid.tHead.rows[0].cells[column].querySelector("button").focus();
}

const isWord = (cell) => typeof sortKey(cell) === "string" && !cell.querySelector("time");

function sortedLines(lines, { column, isDown }) {
  const keyed = lines.map((line) => [sortKey(line.cells[column]), line]);
  keyed.sort(([one], [other]) => (isDown ? compared(other, one) : compared(one, other)));
  return keyed.map(([, line]) => line);
}

// What a cell is sorted by: a number, a moment, or its words.
function sortKey(cell) {
  const marked = cell.querySelector("[data-sort], time");
  const text = marked ? (marked.dataset.sort ?? marked.dateTime) : cell.textContent;
  const number = Number(text.replaceAll(",", ""));
  return text.trim() === "" || Number.isNaN(number) ? text : number;
}

const WORDS = new Intl.Collator("en", { numeric: true });

function compared(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return WORDS.compare(String(one), String(other));
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
