// All frontends, with elements only for the visible rows.
// Invariant: the address has the filter; typing never waits for more than a check of each row's text.

const ROW_HEIGHT = 34;
const MARGIN = 12;

// Some thirty sheets of paper.
const PRINTED_MAX = 1_000;
const COLUMNS = ["frontend", "service", "type", "verdict", "backends", "source", "since"];

// Filters beside single verdicts.
const FILTERS = {
  "": () => true,
  failing: fails,
  "not-serving": ({ verdict }) => !isServed(verdict),
};

function frontendsView({ given }) {
  const filter = { q: given.get("q") ?? "", verdict: given.get("verdict") ?? "", sort: given.get("sort") ?? "" };
  const list = rowList(filter);
  const words = h("input", {
    type: "search",
    id: "words",
    value: filter.q,
    autocomplete: "off",
    spellcheck: "false",
  });
  const verdicts = h(
    "select",
    { id: "verdict" },
    [...Object.keys(FILTERS), ...ORDER].map((verdict) =>
      h("option", { value: verdict, selected: verdict === filter.verdict }, verdict || "any"),
    ),
  );
  const again = () => {
    Object.assign(filter, { q: words.value, verdict: verdicts.value });
    rewrite(filter);
    list.filter();
  };
  words.addEventListener("input", again);
  verdicts.addEventListener("change", again);
  const root = h(
    "div",
    { class: "frontends" },
    h(
      "form",
      { role: "search", onsubmit: (event) => event.preventDefault() },
      h("label", { for: "words" }, "Filter: service, address, verdict, reason, source"),
      words,
      h("label", { for: "verdict" }, "Verdict"),
      verdicts,
    ),
    list.root,
    same("/frontends", {}, ["frontends"]),
  );
  return { title: "Frontends", root, update: list.filter, shown: list.draw, printed: list.draw };
}

function matches(row, words, verdict) {
  const fits = Object.hasOwn(FILTERS, verdict) ? FILTERS[verdict](row) : row.verdict === verdict;
  return fits && words.every((word) => (word === "error" ? row.error : row.text.includes(word)));
}

// By the name of a column, with a minus for the reverse.
function sortRows(rows, sort) {
  const column = sort.replace(/^-/u, "");
  if (!COLUMNS.includes(column)) return;
  const keyOf = column === "verdict" ? rank : (row) => row[column];
  const sign = sort.startsWith("-") ? -1 : 1;
  rows.sort((one, other) => sign * compared(keyOf(one), keyOf(other)));
}

function rowList(filter) {
  const number = h("p", { role: "status" });
  const body = h("tbody");
  const heads = h("tr");
  const sortBy = ({ currentTarget }) => {
    const column = COLUMNS[currentTarget.closest("th").cellIndex];
    const isDown = filter.sort === column || (filter.sort !== `-${column}` && ["backends", "since"].includes(column));
    filter.sort = `${isDown ? "-" : ""}${column}`;
    rewrite(filter);
    choose();
  };
  const drawHeads = () =>
    renew(
      heads,
      COLUMNS.map((column) => {
        const order = filter.sort.replace(/^-/u, "") === column && { isDown: filter.sort.startsWith("-") };
        return sortHead(column, order, true, sortBy);
      }),
    );
  const grid = h(
    "table",
    {},
    h("caption", { class: "unseen" }, "Frontends"),
    h("thead", {}, heads),
    body,
  );
  const window = h("div", { class: "window", tabindex: "0", role: "region", "aria-label": "Frontends" }, grid);
  let found = [];
  const draw = (event) => {
    // A scroll or a print is no press, and must show rows at once.
    if (event) release();
    drawRows(window, grid, body, found, event?.type === "beforeprint");
  };
  const choose = () => {
    const terms = filter.q.toLowerCase().split(/\s+/u).filter(Boolean);
    found = [...store.rows.values()].filter((row) => matches(row, terms, filter.verdict));
    sortRows(found, filter.sort);
    const words = `${found.length.toLocaleString("en")} of ${count(store.rows.size, "frontend")}`;
    renew(number, areServicesKnown() ? words : isLoaded() ? unknownWords() : "Asking for the frontends…");
    drawHeads();
    draw();
  };
  window.addEventListener("scroll", draw, { passive: true });
  return { root: h("div", {}, number, window), filter: choose, draw };
}

// Two empty rows are as high as the rows above and below the visible ones.
// On paper it shows the first rows.
function drawRows(window, grid, body, found, isPrinted) {
  const top = Math.max(0, Math.floor(window.scrollTop / ROW_HEIGHT) - MARGIN);
  const seen = Math.ceil((window.clientHeight || 600) / ROW_HEIGHT) + 2 * MARGIN;
  const [first, rows] = isPrinted ? [0, PRINTED_MAX] : [top, seen];
  const last = Math.min(found.length, first + rows);
  grid.setAttribute("aria-rowcount", found.length + 1);
  renew(
    body,
    gap(first),
    found.slice(first, last).map((row, index) => rowOf(row, first + index + 2)),
    isPrinted ? left(found.length - last) : gap(found.length - last),
  );
}

const left = (rows) =>
  rows > 0 && h("tr", {}, h("td", { colspan: COLUMNS.length }, `and ${rows.toLocaleString("en")} more`));

function gap(rows) {
  const cell = h("td", { colspan: COLUMNS.length });
  cell.style.height = `${rows * ROW_HEIGHT}px`;
  return rows > 0 && h("tr", { class: "gap", "aria-hidden": "true" }, cell);
}

function rowOf(row, index) {
  const backends = row.first?.length ? row.first.join(" ") + (row.backends > row.first.length ? " …" : "") : "";
  return h(
    "tr",
    { "aria-rowindex": index },
    h("th", { scope: "row" }, h("a", { href: serviceLink(row.service), "data-key": row.key }, row.frontend)),
    h("td", { title: row.service }, name(row.service)),
    h("td", {}, row.type),
    h("td", {}, badge(row.verdict, row.reason)),
    h("td", { title: backends }, `${row.backends} `, h("small", {}, backends)),
    h("td", {}, row.source),
    h("td", {}, moment(row.since)),
  );
}
