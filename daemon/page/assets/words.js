// The spelling of verdicts, numbers and times.
// Invariant: the words are the API's own; colour never shows anything that no word or sign shows.

// Verdicts, each with a sign for readers that see no colours.
const VERDICTS = {
  unprogrammed: "✕",
  refusing: "✕",
  dropping: "▽",
  conflict: "≠",
  held: "◐",
  draining: "↓",
  passing: "→",
  bypassed: "↷",
  serving: "●",
};

// The daemon's own definition, by which `holdfast status` decides too.
const DEFINED = /*verdicts*/ null;
const ORDER = DEFINED.worst_first;
const HEALTHS = ["outage", "intended", "degraded", "well"];

// What a verdict means to whoever watches over the node.
function healthOf({ verdict, reason }) {
  const healths = DEFINED.health[verdict] ?? { "*": "outage" };
  return healths[reason ?? ""] ?? healths["*"];
}

// Whether clients get no backend, and nobody asked for that. A row has its health from the daemon.
const fails = (row) => row.health === "outage" && row.verdict !== "serving" && row.verdict !== "bypassed";

// The place of a result for clients: the worst health first, then the worst verdict.
const rank = (met) => HEALTHS.indexOf(met.health ?? healthOf(met)) * ORDER.length + ORDER.indexOf(met.verdict);

// Whether clients get a backend, or are left to another proxy on purpose. Held and draining lists serve.
const isServed = (verdict) => isFine(verdict) || isLast(verdict);
const isFine = (verdict) => verdict === "serving" || verdict === "passing" || verdict === "bypassed";

// Whether clients get backends of a lost list, or leaving ones, because there are no others.
const isLast = (verdict) => verdict === "held" || verdict === "draining";

function badge(verdict, reason) {
  if (!verdict) return h("span", { class: "badge none" }, "–");
  return h(
    "span",
    { class: `badge ${verdict in VERDICTS ? verdict : "none"}`, "data-sort": rank({ verdict, reason }) },
    h("span", { "aria-hidden": "true" }, `${VERDICTS[verdict] ?? "?"} `),
    verdict,
    reason ? ` (${reason})` : "",
  );
}

const count = (number, one, more = `${one}s`) =>
  `${Number(number).toLocaleString("en")} ${number === 1 ? one : more}`;

// An address with its port; a colon of IPv6 is not the port's.
const socket = (address, port) => (address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`);
const frontendName = (row) => `${socket(row.address, row.port)}/${row.protocol}`;

const clock = { utc: recall("utc") === "yes" };

function recall(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

function remember(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // Without storage, the choice lasts as long as the page.
  }
}

// A moment in the chosen zone; its title has the other one.
function moment(text) {
  if (!text) return null;
  const [local, utc] = [written(text, false), written(text, true)];
  return h("time", { datetime: text, title: clock.utc ? local : utc }, inTwo(clock.utc ? utc : local));
}

// The day and the time of day: a narrow cell has them below each other, and breaks neither.
const inTwo = (text) => text.split(/(?<=^\S+) /u).flatMap((part, at) => [at > 0 && " ", h("span", {}, part)]);

function written(text, inUtc) {
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return text;
  const two = (number) => String(number).padStart(2, "0");
  if (inUtc) return `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

// How long ago a moment of the node was; a table sorts it by the moment.
function ago(text) {
  if (!text) return null;
  const age = h("span", {}, `${span(nodeTime() - Date.parse(text))} ago`);
  return h("time", { datetime: text, title: written(text, clock.utc) }, age);
}

// A duration in its largest unit: precise enough to show whether it grows.
function span(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  for (const [unit, length] of [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
  ]) {
    if (seconds >= 2 * length) return `${Math.floor(seconds / length)} ${unit}`;
  }
  return `${seconds} s`;
}
