// A picture of time: what clients of a service got, and how many backends it had, from its history.
// Invariant: each part of a strip is a time with one result for clients, with every record of that time; strips of
// several services share the axis. A table has the same data as the picture.

const WIDTH = 960;
const STRIP = 46;
const AXIS = 34;
const LABEL = 14;
// As many of one service as the daemon keeps.
const RECORDS_OF_A_STRIP = 64;

// Before the first record of the answer the state is unknown, and nothing is drawn.
async function partsOf(service) {
  const records = (await askLines("/history", { service, limit: RECORDS_OF_A_STRIP })).filter(
    (record) => record.kind === "change",
  );
  const met = new Map();
  const parts = [];
  for (const record of records) {
    for (const { frontends, before, after } of record.transitions ?? []) {
      for (const frontend of frontends) {
        if (after) met.set(frontend, after);
        else met.delete(frontend);
      }
      if (parts.length === 0 && before) parts.push(partOf(new Map([["", before]]), null));
    }
    parts.push(partOf(met, record));
  }
  return joined(parts.filter((part) => part.records.length > 0 || part.verdict));
}

function partOf(met, record) {
  const all = [...met.values()];
  const worst = all.reduce((one, other) => (one && rank(one) <= rank(other) ? one : other), null);
  const backends = all.length > 0 ? Math.max(...all.map((one) => one.backends)) : 0;
  const records = record ? [record] : [];
  const { verdict = null, reason = null } = worst ?? {};
  return { verdict, reason, backends, records, from: record ? Date.parse(record.time) : null };
}

const isSame = (one, other) =>
  one?.verdict === other.verdict && one.reason === other.reason && one.backends === other.backends;

// A record without a change for clients joins the current part. Each part ends where the next begins; the last one goes
// on.
function joined(parts) {
  const all = [];
  for (const part of parts) {
    if (isSame(all.at(-1), part)) all.at(-1).records.push(...part.records);
    else all.push(part);
  }
  return all.map((part, index) => ({ ...part, to: all[index + 1]?.from ?? null }));
}

function stripOf(services) {
  const picture = h("div", { class: "strips" });
  const told = h("div", { "aria-live": "polite" });
  // Its rows are many times those of the picture, so they are made when it is opened.
  const rows = h("div");
  const drawTable = () => renew(rows, asTable.open && rowsOf(all));
  const asTable = h("details", { ontoggle: drawTable }, h("summary", {}, "As a table"), rows);
  const root = h("section", {}, h("h3", {}, "What its clients met over time"), picture, told, asTable);
  if (services.length > 1) root.firstChild.textContent = "What their clients met over time";
  let [all, chosen] = [[], null];
  const tell = () => {
    const parts = all.flatMap(({ service, parts }) => parts.map((part) => [service, part]));
    const one = parts.find((one) => keyOf(...one) === chosen);
    if (one) renew(told, toldOf(...one));
  };
  const choose = ({ currentTarget }) => {
    chosen = currentTarget.dataset.key;
    tell();
  };
  const update = async () => {
    const asked = [];
    for (const service of services) asked.push(await storyOf(service));
    all = asked;
    const failed = all.filter(({ error }) => error);
    renew(
      picture,
      drawStrips(all, choose),
      failed.map(({ service, error }) => h("p", { class: "bad" }, `${service}: ${error}`)),
    );
    drawTable();
    tell();
  };
  return { root, update };
}

// The key is its first record: the first parts go when there are too many.
const keyOf = (service, { records: [first] }) => `${service} ${first?.seq ?? "before"}`;

// A failed query of one service is shown, and the others are drawn.
async function storyOf(service) {
  try {
    return { service, parts: await partsOf(service) };
  } catch (error) {
    return { service, parts: [], error: error.message };
  }
}

function drawStrips(all, choose) {
  const begins = all
    .flatMap(({ parts }) => parts)
    .flatMap(({ records }) => records.slice(0, 1))
    .map(({ time }) => Date.parse(time));
  if (begins.length === 0) return h("p", { class: "nothing" }, "The history has no record of it.");
  // On the node's clock; if that was set back, still nothing is later than now.
  const first = Math.min(...begins);
  const now = Math.max(
    nodeTime(),
    first + 1_000,
    ...all.flatMap(({ parts }) => parts.map(({ from }) => from ?? 0)),
  );
  const lead = (now - first) * 0.03;
  const scale = (time) => (((time ?? first - lead) - (first - lead)) / (now - first + lead)) * WIDTH;
  const most = Math.max(1, ...all.flatMap(({ parts }) => parts.map((part) => part.backends)));
  const height = all.length * (STRIP + LABEL + 8) + AXIS;
  const rows = all.map(({ service, parts }, index) =>
    strip(service, parts, index * (STRIP + LABEL + 8), (time) => scale(time), now, most, choose),
  );
  return svg(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${height}`,
      role: "group",
      "aria-label": "Verdicts and numbers of backends over time",
    },
    patterns(),
    rows,
    axis(first, now, scale, height - AXIS),
  );
}

function strip(service, parts, top, scale, now, most, choose) {
  const boxes = parts.map((part) => {
    const [from, to] = [scale(part.from), scale(part.to ?? now)];
    const words = toldText(service, part);
    const level = (part.backends / most) * (STRIP - 4);
    return svg(
      "g",
      {
        tabindex: "0",
        role: "button",
        "aria-label": words,
        "data-key": keyOf(service, part),
        onclick: choose,
        onfocus: choose,
        onpointermove: titled,
        class: "part",
      },
      svg("rect", {
        x: from,
        y: top + LABEL,
        width: Math.max(to - from, 2),
        height: STRIP,
        class: `fill ${part.verdict ?? "gone"}`,
      }),
      pattern(part.verdict) &&
        svg("rect", {
          x: from,
          y: top + LABEL,
          width: Math.max(to - from, 2),
          height: STRIP,
          class: "pattern",
          fill: pattern(part.verdict),
        }),
      part.backends > 0 &&
        svg("rect", {
          x: from,
          y: top + LABEL + STRIP - level,
          width: Math.max(to - from, 2),
          height: level,
          class: "level",
        }),
      to - from > 70 &&
        svg("text", { x: from + 4, y: top + LABEL + 16 }, `${part.verdict ?? "not there"} · ${part.backends}`),
    );
  });
  return [svg("text", { x: 0, y: top + LABEL - 4, class: "label" }, service), boxes];
}

// Only under a pointer: hundreds of parts would each have an unseen title.
function titled({ currentTarget: part }) {
  const words = part.getAttribute("aria-label");
  if (part.firstChild.nodeName !== "title") part.prepend(svg("title", {}, words));
}

// Patterns for readers who see no colours: one for bad states, another for transitions.
const pattern = (verdict) =>
  !verdict || isFine(verdict) ? null : isLast(verdict) ? "url(#dots)" : "url(#lines)";

function patterns() {
  const lines = svg(
    "pattern",
    { id: "lines", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 3, height: 8, class: "ink" }),
  );
  const dots = svg(
    "pattern",
    { id: "dots", width: 8, height: 8, patternUnits: "userSpaceOnUse" },
    svg("circle", { cx: 4, cy: 4, r: 1.6, class: "ink" }),
  );
  return svg("defs", {}, lines, dots);
}

// The day is at the first tick, and at others of another day.
function axis(first, now, scale, top) {
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => first + (now - first) * part);
  return svg(
    "g",
    { class: "axis", "aria-hidden": "true" },
    ticks.map((time, index) => {
      const anchor = index === ticks.length - 1 ? "end" : index === 0 ? "start" : "middle";
      return [
        svg("line", { x1: scale(time), x2: scale(time), y1: top, y2: top + 6 }),
        svg("text", { x: scale(time), y: top + 20, "text-anchor": anchor }, dayLess(time, ticks[index - 1])),
      ];
    }),
  );
}

function dayLess(time, before) {
  const [text, last] = [time, before ?? 0].map((at) => written(new Date(at).toISOString(), clock.utc));
  return text.slice(0, 10) === last.slice(0, 10) ? text.slice(11) : text;
}

function toldText(service, { verdict, reason, backends, from, to }) {
  const until = to ? `until ${written(new Date(to).toISOString(), clock.utc)}` : "until now";
  const since = from ? `from ${written(new Date(from).toISOString(), clock.utc)} ` : "";
  const met = `${verdict ?? "not there"}${reason ? ` (${reason})` : ""}`;
  return `${service}: ${met}, ${count(backends, "backend")}, ${since}${until}`;
}

// The causes of a part: of the record with which it began, and of later ones during it.
function toldOf(service, part) {
  return [h("p", {}, h("b", {}, toldText(service, part))), causesOf(part)];
}

function causesOf({ records }) {
  const causes = records.flatMap(({ time, triggers = [] }) =>
    triggers.map((trigger) => h("li", {}, moment(time), " ", causeOf(trigger))),
  );
  return causes.length > 0 && h("ul", { class: "causes" }, causes);
}

function rowsOf(all) {
  const rows = all.flatMap(({ service, parts }) =>
    parts.map((part) => [
      part.from ? moment(new Date(part.from).toISOString()) : "before",
      name(service),
      badge(part.verdict, part.reason),
      part.backends,
      causesOf(part),
    ]),
  );
  return table("What clients met", ["from", "service", "verdict", "backends", "why"], rows.reverse());
}

function causeOf({
  event,
  kind,
  object,
  origin,
  writer,
  new: isNew,
  fields = [],
  endpoints,
  endpoints_null: isNull,
}) {
  const changes = endpoints
    ? [
        ...(endpoints.added ?? []).map((address) => `+${address}`),
        ...(endpoints.removed ?? []).map((address) => `−${address}`),
      ]
    : [];
  const parts = [
    [kind, object, event].filter(Boolean).join(" "),
    isNew && "new",
    isNull && "endpoints null",
    changes.length > 0 && `endpoints ${changes.join(" ")}`,
    fields.length > 0 && `changed: ${fields.join(", ")}`,
    writer && `written by ${writer.manager} (${writer.operation})`,
    origin && `from ${origin}`,
  ];
  return parts.filter(Boolean).join(", ");
}
