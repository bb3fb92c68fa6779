// One service in detail: the sentence with the reason, the path of its clients, endpoints, the kernel's entries,
// rejected clients, the next step, and its time.
// Invariant: all of it comes from /explain and /history; for an object that is gone, the past is shown.

function serviceView({ rest: [namespace, own], given }) {
  if (!own) return chooser("service", "Why does a service serve, or not?");
  const service = `${namespace}/${own}`;
  const [from, to] = [given.get("from") ?? "", given.get("to") ?? ""];
  const root = h("div", {}, h("p", {}, "Asking…"));
  const error = h("p", { class: "bad", role: "status" });
  const strip = stripOf([service]);
  let [asked, drawn] = [null, 0];
  const update = async () => {
    const seen = newest(service);
    if (asked !== null && asked === seen) return;
    asked = seen;
    try {
      const explained = await ask("/explain", { service });
      const packet = from && to && (await packetOf(from, to));
      const past = await askText("/history", { service, limit: 50 });
      drawn = Date.now();
      root.classList.remove("stale");
      renew(error);
      renew(
        root,
        error,
        summary(service, explained),
        explained.services.map(wayOf),
        strip.root,
        explained.services.map(details),
        fromForm(service, explained, from, to),
        packet,
        h("h3", {}, "What happened, newest first"),
        pastOf(past),
        sameService(service, from, to),
      );
      await strip.update();
    } catch (failure) {
      asked = null;
      renew(error, `${service}: ${failure.message}`, dated(drawn));
      root.classList.add("stale");
      if (!root.contains(error)) renew(root, error);
    }
  };
  return { title: service, root, update, pause: AGAIN };
}

// A key that changes whenever the service may have changed.
function newest(service) {
  return `${store.filled} ${store.newest.get(service) ?? 0}`;
}

function summary(service, { sentence, near, past, stale_since: stale }) {
  return [
    h("h2", {}, name(service)),
    h("p", { class: "sentence" }, sentence),
    stale && h("p", { class: "bad" }, "The data of its source is old, since ", moment(stale)),
    near.length > 0 &&
      h(
        "p",
        {},
        "Near it: ",
        near.map((one) => [" ", toService(one.name)]),
      ),
    past.length > 0 && h("p", {}, `It existed before: ${count(past.length, "record")} in the history.`),
    h(
      "p",
      {},
      h("a", { href: link("diagnose", service.split("/")) }, "What is wrong with it, and what to do next"),
      " · ",
      h("a", { href: link("time", [], { services: service }) }, "Compare it with others over time"),
      " · ",
      h("a", { href: link("events", service.split("/")) }, "Its Events"),
    ),
  ];
}

function details(one) {
  return h(
    "section",
    {},
    h("h3", {}, "Frontends"),
    frontendsOf(one),
    clientsOf(one),
    h("h3", {}, "Endpoints"),
    endpointsOf(one),
    h("h3", {}, "Clients that were not served"),
    refusedOf(one),
    balancerOf(one.load_balancer),
    h("h3", {}, "Its objects in the source"),
    desiredOf(one.desired),
  );
}

function frontendsOf({ frontends }) {
  const rows = frontends.map((row) => [
    frontendName(row),
    row.type,
    badge(row.verdict, row.reason),
    moment(row.since),
    mapsOf(row),
    row.next,
  ]);
  return table(
    "What clients dial",
    ["frontend", "type", "verdict", "since", "in the maps", "what happens next"],
    rows,
  );
}

const WRITTEN = { done: "as decided", pending: "not written yet", error: "the last write failed" };

function mapsOf({ applied, status, error, owner, announcement }) {
  const match = applied.matches === false ? h("strong", {}, "not as decided") : WRITTEN[status];
  const problem = applied.error ?? error;
  return [
    applied.programmed ? [count(applied.backends.length, "backend"), ", ", match] : "nothing",
    problem && h("div", { class: "bad" }, problem),
    owner && h("div", {}, toService(owner), " has the address"),
    announcement && announcementOf(announcement),
  ];
}

const TRIES =
  "Each try counts since the port exists: a client that gets no answer tries again by itself, so 3 dropped may be " +
  "one client.";

// A port has one count for all of its frontends; at an address that another service has, the count is that service's.
function clientsOf({ frontends }) {
  const ports = new Map();
  for (const row of frontends.filter(({ applied, owner }) => applied.clients && !owner)) {
    const key = [row.port_name, row.protocol, row.address.includes(":") ? "IPv6" : "IPv4"].filter(Boolean).join(" ");
    const { clients, names = [] } = ports.get(key) ?? { clients: row.applied.clients };
    ports.set(key, { clients, names: [...names, frontendName(row)] });
  }
  const rows = [...ports].map(([port, { clients, names }]) => [
    port,
    names.map((one) => h("div", {}, one)),
    clients.connects,
    clients.refused,
    clients.dropped,
  ]);
  if (rows.length === 0) return null;
  return [
    table("Tries of clients", ["port", "at all of", "connected", "refused", "dropped"], rows),
    h("p", {}, h("small", {}, TRIES)),
  ];
}

// Whether this node announces the address to routers.
function announcementOf({ announced, table, why, error }) {
  const said = [announced ? `announced (table ${table})` : "not announced", why, error].filter(Boolean).join(": ");
  return h("div", announced && !error ? {} : { class: "bad" }, said);
}

function endpointsOf({ endpoints }) {
  const rows = endpoints.map((row) => [
    `${socket(row.address, row.port)}/${row.protocol}`,
    row.state,
    row.reasons.join(", "),
    row.weight,
    checkOf(row.check),
    row.node && name(row.node),
    row.zone && name(row.zone),
    row.slice && name(row.slice),
    moment(row.since),
  ]);
  return table("Endpoints", ["endpoint", "state", "why", "weight", "check", "node", "zone", "slice", "since"], rows);
}

// The last health check of an endpoint, if it is checked.
function checkOf(check) {
  if (!check) return null;
  const { kind, usable, last } = check;
  const said = last && `${last.in_a_row} ${last.result} in a row, ${last.took_microseconds / 1000} ms`;
  return [
    `${kind}, `,
    usable ? "usable" : h("strong", {}, "unusable"),
    said && h("div", {}, `${said}, `, moment(last.at)),
    last?.error && h("div", { class: "bad" }, last.error),
  ];
}

function refusedOf({ refusals }) {
  const rows = refusals.map((row) => [
    moment(row.time),
    row.verdict,
    row.frontend,
    row.cause,
    row.source ?? "–",
    row.pid ? `${row.comm} (${row.pid})` : "–",
    row.count,
  ]);
  return table("Refusals", ["last", "verdict", "frontend", "cause", "from", "process", "times"], rows);
}

function balancerOf(balancer) {
  if (!balancer) return null;
  return [
    h("h3", {}, "Load balancer"),
    facts([
      ["state", balancer.state],
      ["since", moment(balancer.since)],
      ["addresses", balancer.ingress.join(", ")],
      ["class", balancer.class],
      ["finding", balancer.finding],
      ["finalizers", balancer.finalizers.join(", ")],
      ["written by", balancer.writers.join(", ")],
    ]),
  ];
}

function desiredOf(desired) {
  const object = ({ writer, written: at, origin, resource_version: version }) =>
    facts([
      ["from", origin],
      ["version", version],
      ["written by", writer],
      ["written", moment(at)],
    ]);
  const slices = desired.slices.map((slice) => [
    name(slice.name),
    slice.endpoints_null ? "null" : slice.endpoints,
    object(slice),
  ]);
  return [
    desired.object && object(desired.object),
    table("Slices", ["slice", "endpoints", "object"], slices),
    facts(desired.settings.map(({ name: key, value, origin }) => [key, `${value} (${origin})`])),
  ];
}

function sameService(service, from, to) {
  if (!from || !to) return same("/explain", { service }, ["explain", service]);
  return same("/explain", { endpoint: to, from }, ["explain", to, "--from", from]);
}
