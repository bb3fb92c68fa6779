// The node on one screen: what is wrong first, then what changed, then the numbers of the machine.
// Invariant: red is what makes `holdfast status` end with 1, and nothing else; a failed query is shown, not left out.

const FIRST = 20;

// The newest services that a group names.
const NAMED = 3;

function nowView() {
  const root = h("div", { class: "now" });
  return {
    title: "Now",
    root,
    update: () =>
      renew(
        root,
        health(),
        areServicesKnown()
          ? aged("/frontends", failing(), failingChecks(), failingBackends(), onLastBackends(), latest(), numbers())
          : h("p", {}, unknownWords()),
        notes(),
        aged("/apiserver", apiserverLine()),
        aged("/datapath", fills(), devices(), otherProxies()),
        same("/services", {}, ["status"]),
      ),
  };
}

// The problems of this node besides clients that fail, each with why.
function problems() {
  const [ready, datapath, services] = ["/readyz", "/datapath", "/services"].map(answer);
  const apiserver = answer("/apiserver");
  const rejected = (services?.rejected.filter(({ kind }) => kind !== "Kind").length ?? 0) + (services?.rejected_dropped ?? 0);
  const errors = [...store.rows.values()].filter((row) => row.error);
  const checks = (ready?.failing_checks?.length ?? 0) + (ready?.failing_checks_omitted ?? 0);
  const backends = (ready?.failing_backends?.length ?? 0) + (ready?.failing_backends_omitted ?? 0);
  return [
    isUnconfigured(ready, services) && ["nothing is configured: ", UNCONFIGURED],
    ready && !ready.healthy && ["not ready: ", ready.reason],
    apiserver?.away && [
      h("a", { href: link("apiserver") }, unheard(apiserver)),
      ": this node goes on with what it knows, and learns of no rollout",
    ],
    ready?.refused_reload && ["the last reload was refused: ", ready.refused_reload],
    ready?.unwritten && [`the disk takes no write: ${ready.unwritten.errors.join("; ")}; `, ready.unwritten.restart],
    ...hookProblems(datapath?.kernel),
    ...packetProblems(datapath?.kernel?.packets),
    ...(datapath?.announced_addresses ?? [])
      .filter(({ error }) => error)
      .map(({ address, error }) => [`the route to ${address} cannot be updated: `, error]),
    ...(ready?.closed_ports ?? [])
      .filter(({ service }) => service)
      .map(({ service, address, why }) => [[toService(service), ` has no health check port at ${address}: `], why]),
    ...(ready?.node_port_listeners ?? []).map(({ service, why }) => [[toService(service), ": "], why]),
    ...(ready?.denied_clients ?? []).filter(isShortage).map(deniedWords),
    checks > 0 && [count(checks, "backend fails its health checks", "backends fail their health checks"), null],
    backends > 0 && [count(backends, "backend fails clients", "backends fail clients"), null],
    rejected > 0 && [
      h("a", { href: link("rejected") }, count(rejected, "object is rejected", "objects are rejected")),
      null,
    ],
    errors.length > 0 && [
      h("a", { href: link("frontends", [], { q: "error" }) }, `${count(errors.length, "frontend")} not as decided: `),
      errors[0].error,
    ],
  ].filter(Boolean);
}

/** Which kinds are not heard, unless none is. */
function unheard({ watches }) {
  const needed = watches.filter(({ state }) => state !== "absent");
  const broken = needed.filter(({ state }) => state !== "watching");
  const isWhole = broken.length === needed.length;
  return isWhole ? "the apiserver is not heard" : `no watch of ${broken.map(({ kind }) => kind).join(", ")}`;
}

const UNCONFIGURED = "neither an apiserver nor manifests are given, and there is no [[service]]; see man holdfast.toml";

// Services would come from `[[service]]` blocks alone, and there is none.
const isUnconfigured = (ready, services) =>
  services?.totals.services === 0 && (ready?.sources ?? []).every(({ source }) => source === "config");

function hookProblems(kernel) {
  if (!kernel) return [];
  const { detached_hooks: bare = [], broken_hooks: broken, behind_hooks: behind = [], repair_failure: why } = kernel;
  const isName = (hook) => hook.startsWith("getpeername");
  const [names, redirects] = [bare.filter(isName), bare.filter((hook) => !isName(hook))];
  const unpinned = broken.filter((hook) => !bare.includes(hook));
  return [
    kernel.waiting && ["another version's programs still serve", null],
    redirects.length > 0 && ["clients are not served, for want of a program: ", [redirects.join(", "), why && `: ${why}`]],
    names.length > 0 && ["clients are told the addresses of backends, for want of a program: ", names.join(", ")],
    unpinned.length > 0 && ["programs that end with this daemon, for want of their pins: ", unpinned.join(", ")],
    behind.length > 0 && ["programs that read tables which are no longer written: ", behind.join(", ")],
    kernel.grace_failure && ["the kernel's grace periods do not end: ", kernel.grace_failure],
  ];
}

function packetProblems(packets) {
  if (!packets) return [];
  const outer = packets.devices.filter((device) => device.class === "outer" && device.error);
  const what = packets.behind ? "get outdated services" : "are not served";
  return [
    packets.failure && [`clients from outside ${what}: `, packets.failure],
    ...outer.map(({ name: own, unpinned, error }) => [
      `clients that arrive at ${own} ${unpinned ? "are served until this daemon ends" : "are not served"}: `,
      error,
    ]),
  ];
}

// What an operator may want to know, though clients are as well as somebody meant them to be.
function notes() {
  const [ready, datapath] = ["/readyz", "/datapath"].map(answer);
  const found = [
    ready?.stale_since && ["the data of a source is old, since ", moment(ready.stale_since)],
    ...(ready?.shut ?? []).map((why) => ["the admin API cannot listen: ", why]),
    ...(ready?.closed_ports ?? [])
      .filter(({ service }) => !service)
      .map(({ purpose, address, why }) => [`${purpose} at ${address}: `, why]),
    ...(datapath?.filters ?? []).map(({ place: where, rule }) => [`a filter at ${where}: `, rule]),
    ...(datapath?.announced_addresses ?? [])
      .filter(({ announced }) => !announced)
      .map(({ address, why }) => [`${address} is not announced: `, why ?? "its route does not exist"]),
    ...(ready?.denied_clients ?? []).filter((row) => !isShortage(row)).map(deniedWords),
    ready?.denied_clients_omitted > 0 && [
      h("a", { href: link("refusals") }, `${ready.denied_clients_omitted} more frontends turned clients away`),
      null,
    ],
    ...(ready?.event_knowledge_faults ?? []).map((fault) => [`${fault.file}: `, fault.message]),
  ].filter(Boolean);
  return found.length > 0 && h("section", {}, h("h2", {}, "Worth knowing"), listOf(found));
}

// No rule of anybody kept these clients out: this node lacks room, ports or an address.
const isShortage = ({ cause }) => ["flows", "ports", "address"].includes(cause);

const deniedWords = ({ service, frontend, protocol, verdict, count, clients, more_clients: more, last, why }) => [
  [service ? toService(service) : "no service", `: ${frontend}/${protocol} ${verdict} ${count} times `],
  [`${clients.join(", ")}${more > 0 ? ` and ${more} more` : ""}, ${why}, the last at `, moment(last)],
];

const listOf = (lines) => h("ul", {}, lines.map(([what, why]) => h("li", {}, what, why)));

// The reason of the colour at the top of the page, in short.
function problemWords() {
  const [services, others] = [worstOf(fails).length, problems().length];
  return [
    services > 0 && `clients of ${count(services, "service")} fail`,
    others > 0 && count(others, services > 0 ? "other problem" : "problem"),
  ]
    .filter(Boolean)
    .join(", ");
}

function health() {
  if (isGone())
    return h("p", { class: "unknown" }, "? The state is unknown: the daemon does not answer. All below is old.");
  if (!answer("/readyz")) return h("p", {}, "The readiness of the node is not known yet.");
  const found = problems();
  const unknown = unasked().map((path) => [`${path} could not be queried: `, store.answers[path].error]);
  return [
    found.length > 0 && h("section", { class: "bad" }, h("h2", {}, "Problems"), listOf(found)),
    unknown.length > 0 && h("section", {}, h("h2", {}, "Not known"), listOf(unknown)),
  ];
}

// No row means no service only once all lists have come.
const areServicesKnown = () => isLoaded() && (store.rows.size > 0 || missingLists().length === 0);

function unknownWords() {
  const missing = missingLists();
  const why = missing.length > 0 ? `, because no first list has come yet from ${missing.join(", ")}` : "";
  return `The services of this node are not known yet${why}.`;
}

// Each service by its worst frontend, as the daemon chooses it.
function worstRows() {
  const worst = new Map();
  for (const row of store.rows.values()) {
    const known = worst.get(row.service);
    if (!known || rank(row) <= rank(known)) worst.set(row.service, row);
  }
  return [...worst.values()];
}

const isNewer = (one, other) =>
  one.since === other.since ? (one.service < other.service ? -1 : 1) : one.since < other.since ? 1 : -1;

// Services of this kind, newest first.
function worstOf(isMeant) {
  store.worst ??= worstRows();
  return store.worst.filter(isMeant).sort(isNewer);
}

// One line for each cause, with the number of services and the newest of them.
function groupsOf(heading, caption, tone, isMeant) {
  const groups = new Map();
  for (const row of worstOf(isMeant)) {
    const cause = `${row.verdict} ${row.reason}`;
    if (!groups.has(cause)) groups.set(cause, []);
    groups.get(cause).push(row);
  }
  if (groups.size === 0) return null;
  const heads = ["clients meet", "newest services", "how many", "since", "next"];
  const lines = [...groups.values()].map(groupLine);
  return h("section", {}, h("h2", { class: tone }, heading), table(caption, heads, lines));
}

function groupLine(rows) {
  const [{ verdict, reason, service, since }] = rows;
  const more = rows.length - NAMED;
  const named = rows.slice(0, NAMED).map((row) => h("div", {}, toService(row.service), ownerOf(row)));
  const rest = h("a", { href: link("frontends", [], { verdict, q: reason }) }, `and ${more.toLocaleString("en")} more`);
  return [
    badge(verdict, reason),
    [named, more > 0 && h("div", {}, rest)],
    rows.length.toLocaleString("en"),
    ago(since),
    h("a", { href: link("diagnose", service.split("/")) }, "Diagnose ", name(service)),
  ];
}

const ownerOf = ({ owner }) => owner && [": ", toService(owner), " has its address"];

const failing = () => groupsOf("Clients fail", "Services whose clients fail", "bad", fails);

const onLastBackends = () =>
  groupsOf("Served by their last backends", "Services that are held or draining", "held", (row) =>
    isLast(row.verdict),
  );

// As their objects ask for: scaled down, without endpoints since they came, or elsewhere by policy.
const meant = () =>
  groupsOf(
    "Not served, yet or on purpose",
    "Services that are scaled down, never had an endpoint, or are not served here by their policy",
    null,
    (row) => row.health === "intended",
  );

function failingChecks() {
  const ready = answer("/readyz");
  if (!ready?.failing_checks?.length) return null;
  const rows = ready.failing_checks.map(({ service, backend, check }) => [
    toService(service),
    backend,
    check.kind,
    check.last?.error,
    ago(check.last?.at),
  ]);
  return h(
    "section",
    {},
    h("h2", { class: "bad" }, "Health checks fail"),
    table("Backends without new clients", ["service", "backend", "check", "error", "tried"], rows),
    ready.failing_checks_omitted > 0 && h("p", {}, `and ${ready.failing_checks_omitted} more`),
  );
}

const HOW = { refused: "refuses connections", silent: "answers nobody" };

function failingBackends() {
  const ready = answer("/readyz");
  if (!ready?.failing_backends?.length) return null;
  const rows = ready.failing_backends.map(({ service, backend, frontend, protocol, how, at }) => [
    toService(service),
    backend,
    HOW[how] ?? how,
    `${frontend}/${protocol}`,
    at,
  ]);
  return h(
    "section",
    {},
    h("h2", { class: "bad" }, "Backends fail clients"),
    table("Backends that fail clients", ["service", "backend", "what it does", "clients dialled", "last"], rows),
    ready.failing_backends_omitted > 0 && h("p", {}, `and ${ready.failing_backends_omitted} more`),
  );
}

// What was drawn from an answer: greyed, with its date, once that could not be refreshed.
function aged(path, ...parts) {
  const { error, at } = store.answers[path] ?? {};
  if (!error || !at) return parts;
  return h("div", { class: "stale" }, h("p", {}, `${path} could not be queried`, dated(at)), parts);
}

function verdictCounts() {
  const counts = new Map();
  for (const { verdict } of store.rows.values()) counts.set(verdict, (counts.get(verdict) ?? 0) + 1);
  return [...counts].sort(([one], [other]) => ORDER.indexOf(one) - ORDER.indexOf(other));
}

const numbers = () => [verdictBar(), meant()];

// How many frontends have each verdict: as lengths of a bar, and each as a link with its number.
function verdictBar() {
  const counts = verdictCounts();
  const missing = missingLists();
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
    h("h2", {}, count(store.rows.size, "frontend"), missing.length > 0 && ` so far, without ${missing.join(", ")}`),
    store.rows.size === 0 && h("p", {}, "No service with an address is configured."),
    h("div", { class: "bar", "aria-hidden": "true" }, counts.map(part)),
    h("ul", { class: "legend" }, counts.map(entry)),
  );
}

function apiserverLine() {
  const apiserver = answer("/apiserver");
  if (!apiserver) return null;
  if (!apiserver.enabled)
    return h("p", {}, "No apiserver is configured: services come from manifests and the configuration.");
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

// What clients noticed; the history has the rest.
function latest() {
  const rows = store.records
    .filter(({ transitions }) => transitions?.length > 0)
    .slice(0, FIRST)
    .map((record) => [moment(record.time), toService(record.service), transitionsOf(record), record.rule]);
  return h(
    "section",
    {},
    h("h2", {}, "Latest changes"),
    table("The latest changes", ["time", "service", "what clients meet", "because"], rows),
    h("p", {}, h("a", { href: link("history") }, "The whole history, with causes")),
  );
}

function transitionsOf(record) {
  const one = ({ frontends, before, after, backends }) =>
    h(
      "div",
      {},
      before ? badge(before.verdict) : "new",
      " → ",
      after ? [badge(after.verdict, after.reason), ` ${count(after.backends ?? 0, "backend")}`] : "gone",
      moved(backends),
      frontends.length > 1 ? ` at ${count(frontends.length, "frontend")}` : "",
    );
  return record.transitions.map(one);
}

function moved({ added = [], removed = [] } = {}) {
  const parts = [added.length > 0 && `+${added.length}`, removed.length > 0 && `−${removed.length}`].filter(
    Boolean,
  );
  return parts.length > 0 ? ` (${parts.join(" ")})` : "";
}
