// The node on one screen: problems first, and each line links to its reason.
// Invariant: a fault of `holdfast status` is one here; a failed query is shown, not left out.

const FIRST = 20;

function nowView() {
  const root = h("div", { class: "now" });
  return {
    title: "Now",
    root,
    update: () =>
      renew(
        root,
        health(),
        isLoaded() ? [verdictBar(), notServing(), servedForNow()] : tableUnknown(),
        apiserverLine(),
        fills(),
        devices(),
        otherProxies(),
        isLoaded() && latest(),
        same("/services", {}, ["status"]),
      ),
  };
}

// The problems, each with the view that has details.
function faults() {
  const [ready, datapath, services] = ["/readyz", "/datapath", "/services"].map(answer);
  const kernel = datapath?.kernel;
  const rejected = (services?.rejected.length ?? 0) + (services?.rejected_dropped ?? 0);
  const errors = [...store.rows.values()].filter((row) => row.error);
  return [
    ready && !ready.healthy && ["not ready: ", ready.reason],
    ready?.refused_reload && ["the last reload was refused: ", ready.refused_reload],
    ...(ready?.shut ?? []).map((why) => ["the admin API cannot listen: ", why]),
    ready?.stale_since && ["the data of a source is old, since ", moment(ready.stale_since)],
    kernel?.waiting && ["programs wait to be attached", null],
    ...(kernel?.detached_hooks ?? []).map((hook) => ["a program is no longer attached: ", hook]),
    ...(kernel?.broken_hooks ?? [])
      .filter((hook) => !kernel.detached_hooks.includes(hook))
      .map((hook) => ["a program serves without its pin, and ends with the daemon: ", hook]),
    ...(kernel?.behind_hooks ?? []).map((hook) => ["a program reads tables that are no longer written: ", hook]),
    kernel?.packets?.failure && ["packets from outside: ", kernel.packets.failure],
    kernel?.grace_failure && ["the kernel's grace period: ", kernel.grace_failure],
    ready?.history.error && ["the history cannot be written: ", ready.history.error],
    ready?.unwritten_drains && ["the last orders to drain cannot be written: ", ready.unwritten_drains],
    ready?.snapshot.error && ["the snapshot cannot be written: ", ready.snapshot.error],
    ...(ready?.closed_ports ?? []).map((port) => [`${port.purpose} at ${port.address}: `, port.why]),
    ...(ready?.failing_checks ?? []).map(({ service, backend, check }) => [
      [toService(service), `: the health check of ${backend} fails: `],
      check.last?.error ?? null,
    ]),
    ready?.failing_checks_omitted > 0 && [
      `${count(ready.failing_checks_omitted, "more health check fails", "more health checks fail")}`,
      null,
    ],
    ...(ready?.event_knowledge_faults ?? []).map((fault) => [`${fault.file}: `, fault.message]),
    rejected > 0 && [
      h("a", { href: link("rejected") }, `${count(rejected, "object is", "objects are")} rejected`),
      null,
    ],
    errors.length > 0 && [
      h(
        "a",
        { href: link("frontends", [], { q: "error" }) },
        `${count(errors.length, "frontend")} with an error: `,
      ),
      errors[0].error,
    ],
  ].filter(Boolean);
}

function health() {
  const found = faults();
  const asked = GENERAL.filter((path) => store.answers[path]?.error);
  const unasked = asked.map((path) => h("li", {}, `${path} could not be queried: ${store.answers[path].error}`));
  if (!answer("/readyz")) return h("p", {}, "The readiness of the node is not known yet.");
  if (isGone())
    return h(
      "p",
      { class: "unknown" },
      "? The state is unknown: the daemon does not answer. The data below is from its last answers.",
    );
  if (found.length === 0 && unasked.length === 0)
    return h("p", { class: "good" }, "● holdfast itself has no problem.");
  return h(
    "section",
    { class: "bad" },
    h("h2", {}, "Problems"),
    h(
      "ul",
      {},
      found.map(([what, why]) => h("li", {}, what, why)),
      unasked,
    ),
  );
}

const tableUnknown = () => h("p", {}, "The services of this node are not known yet.");

function verdictCounts() {
  const counts = new Map();
  for (const { verdict } of store.rows.values()) counts.set(verdict, (counts.get(verdict) ?? 0) + 1);
  return [...counts].sort(([one], [other]) => ORDER.indexOf(one) - ORDER.indexOf(other));
}

// How many frontends have each verdict: as lengths of a bar, and each as a link with its number.
function verdictBar() {
  const counts = verdictCounts();
  const all = store.rows.size;
  const part = ([verdict, number]) => {
    const element = h("span", { class: `part ${verdict}` });
    element.style.flexGrow = number;
    return element;
  };
  const entry = ([verdict, number]) =>
    h(
      "li",
      {},
      h("a", { href: link("frontends", [], { verdict }) }, badge(verdict), ` ${number.toLocaleString("en")}`),
    );
  return h(
    "section",
    {},
    h("h2", {}, count(all, "frontend")),
    h("div", { class: "bar", "aria-hidden": "true" }, counts.map(part)),
    h("ul", { class: "legend" }, counts.map(entry)),
  );
}

// Services with a frontend that does not serve, worst first.
const notServing = () =>
  worstOf("Not serving", "Services that do not serve", "not-serving", ({ verdict }) => !isServed(verdict));

// Services whose backends are gone from their list, or are going.
function servedForNow() {
  const isMeant = ({ verdict }) => isServed(verdict) && !isFine(verdict);
  if (![...store.rows.values()].some(isMeant)) return null;
  return worstOf("Served by their last backends", "Services that are held or draining", "held", isMeant);
}

// Services with a frontend of this kind, each with its worst one.
function worstOf(heading, caption, filter, isMeant) {
  const worst = new Map();
  for (const row of store.rows.values()) {
    const known = worst.get(row.service);
    if (isMeant(row) && (!known || worse(row.verdict, known.verdict) === row.verdict)) worst.set(row.service, row);
  }
  const rows = [...worst.values()].sort(
    (one, other) =>
      ORDER.indexOf(one.verdict) - ORDER.indexOf(other.verdict) || one.service.localeCompare(other.service),
  );
  const shown = rows
    .slice(0, FIRST)
    .map((row) => [toService(row.service), badge(row.verdict, row.reason), row.frontend, moment(row.since)]);
  const more =
    rows.length > FIRST &&
    h(
      "p",
      {},
      h(
        "a",
        { href: link("frontends", [], { verdict: filter }) },
        `${count(rows.length - FIRST, "more service")}`,
      ),
    );
  return h(
    "section",
    {},
    h("h2", {}, heading),
    table(caption, ["service", "verdict", "frontend", "since"], shown),
    more,
  );
}

function apiserverLine() {
  const apiserver = answer("/apiserver");
  if (!apiserver) return null;
  if (!apiserver.enabled)
    return h("p", {}, "No apiserver is configured: manifests and the configuration are served.");
  const active = apiserver.endpoints.find((endpoint) => endpoint.active);
  // Each watch ends now and then, so an endpoint that answered last may have no connection at this moment.
  const idle = apiserver.endpoints.find(({ state }) => ["healthy", "recovering", "throttled"].includes(state));
  const untried = apiserver.endpoints.every(({ state, last_error }) => state === "unknown" && !last_error);
  const none = untried ? "none has been tried yet" : "none answers";
  const shown = active ?? idle;
  const bad = apiserver.endpoints.filter((endpoint) => endpoint.last_error).length;
  return h(
    "section",
    {},
    h("h2", {}, "Apiserver"),
    h(
      "p",
      {},
      h(
        "a",
        { href: link("apiserver") },
        shown ? `${shown.address} (${shown.tier}), ${shown.state}` : none,
      ),
      bad > 0 && ` – ${count(bad, "endpoint")} with an error`,
    ),
  );
}

// A meter, and its numbers for readers that cannot see it.
function meter(what, used, max) {
  const share = max > 0 ? used / max : 0;
  return [
    what,
    [
      h("meter", { min: 0, max: Math.max(max, 1), value: used, high: max * 0.8, optimum: 0, "aria-label": what }),
      ` ${used.toLocaleString("en")} of ${max.toLocaleString("en")} (${Math.round(share * 100)} %)`,
    ],
  ];
}

function fills() {
  if (!answer("/datapath")) return h("p", {}, "The fill of the tables is not known yet.");
  const [kernel, flows] = [answer("/datapath").kernel, answer("/flows")];
  const maps = (kernel?.maps ?? []).map((map) => meter(map.map, map.used, map.limit));
  const live = flows?.packets ? [meter("flows", flows.live, flows.max)] : [];
  if (!kernel) return h("p", {}, "Tables are in memory only: no program touches traffic.");
  return h("section", {}, h("h2", {}, "How full"), facts([...maps, ...live]));
}

function devices() {
  const packets = answer("/datapath")?.kernel?.packets;
  if (!packets) return null;
  const rows = packets.devices.map((device) => [
    name(device.name),
    device.class,
    device.attached ? "attached" : "not attached",
    device.why,
    device.error,
  ]);
  return h(
    "section",
    {},
    h("h2", {}, "Devices"),
    table("Devices for packets from outside", ["device", "class", "programs", "why", "error"], rows),
  );
}

function otherProxies() {
  const others = answer("/datapath")?.other_proxies ?? [];
  if (others.length === 0) return null;
  const lines = (texts) => texts.map((line) => h("div", {}, line));
  const rows = others.map((other) => [
    other.proxy,
    lines(other.evidence),
    lines(other.traces.map((trace) => `${trace.what}: ${trace.remove}`)),
  ]);
  return h(
    "section",
    {},
    h("h2", {}, "Other proxies on this node"),
    table("Other proxies", ["proxy", "seen by", "its parts here, and how to end them"], rows),
  );
}

function latest() {
  const rows = store.records
    .slice(0, FIRST)
    .map((record) => [moment(record.time), toService(record.service), transitionsOf(record), record.rule]);
  return h(
    "section",
    {},
    h("h2", {}, "Latest changes"),
    table("The latest changes", ["time", "service", "verdicts", "rule"], rows),
    h("p", {}, h("a", { href: link("history") }, "The whole history, with causes")),
  );
}

function transitionsOf(record) {
  const one = ({ frontends, before, after, backends }) =>
    h(
      "div",
      {},
      badge(before?.verdict),
      " → ",
      badge(after?.verdict, after?.reason),
      ` ${count(after?.backends ?? 0, "backend")}`,
      moved(backends),
      frontends.length > 1 ? ` at ${count(frontends.length, "frontend")}` : "",
    );
  return (record.transitions ?? []).map(one);
}

function moved({ added = [], removed = [] } = {}) {
  const parts = [added.length > 0 && `+${added.length}`, removed.length > 0 && `−${removed.length}`].filter(
    Boolean,
  );
  return parts.length > 0 ? ` (${parts.join(" ")})` : "";
}
