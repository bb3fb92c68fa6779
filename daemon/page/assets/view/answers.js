// The views of one answer each, as tables: refusals, flows, the apiserver, rejected objects, history.
// Invariant: each is queried again when it may have changed, and never faster than a person reads.

// Redraws take memory that a browser frees late: hundreds of lines more often than this are too many.
const AGAIN = 5_000;

// Says of what moment the shown data is.
const dated = (at) => (at ? `. The page shows the state of ${written(new Date(at).toISOString(), clock.utc)}.` : null);

// Queries, draws, and keeps the drawn data when a query fails, greyed and with its date.
function asking(title, question, draw) {
  const root = h("div", {}, h("p", {}, "Asking…"));
  const error = h("p", { class: "bad", role: "status" });
  let [last, drawn] = [0, 0];
  const update = async () => {
    if (Date.now() - last < AGAIN) return;
    last = Date.now();
    try {
      const said = await question();
      drawn = Date.now();
      renew(error);
      root.classList.remove("stale");
      renew(root, h("h2", {}, title), error, draw(said));
    } catch (failure) {
      renew(error, failure.message, dated(drawn));
      root.classList.add("stale");
      if (!error.isConnected) replace(root, h("h2", {}, title), error);
    }
  };
  return { title, root, update, every: AGAIN };
}

const refusalsView = () =>
  asking(
    "Clients that were not served",
    () => ask("/refusals"),
    (said) => {
      const rows = said.refusals.map((row) => [
        moment(row.time),
        row.verdict,
        `${socket(row.address, row.port)}/${row.protocol}`,
        toService(row.service),
        row.reason ?? row.cause,
        row.source ?? (row.comm ? `${row.comm} (${row.pid})` : "–"),
        row.device ? name(row.device) : "–",
        row.count,
      ]);
      return [
        said.failure && h("p", { class: "bad" }, said.failure),
        h(
          "p",
          {},
          `${count(said.refused_total, "refusal")} and ${count(said.dropped_total, "drop")} since the daemon began`,
          said.lost_total > 0 && `, and ${said.lost_total.toLocaleString("en")} that could not be reported`,
        ),
        (rows.length > 0 || !said.failure) &&
          table("Refusals", ["last", "verdict", "dialled", "service", "why", "by", "device", "times"], rows),
        same("/refusals", {}, ["refusals"]),
      ];
    },
  );

const length = (seconds) => h("span", { "data-sort": seconds }, span(seconds * 1000));

const flowsView = () =>
  asking(
    "Flows: clients from outside and their backends",
    () => ask("/flows", { limit: 200 }),
    (said) => {
      if (!said.packets) return h("p", {}, "This node does not translate packets from outside.");
      const rows = said.flows.map((flow) => [
        socket(flow.client_address, flow.client_port),
        flow.protocol,
        socket(flow.frontend_address, flow.frontend_port),
        socket(flow.backend_address, flow.backend_port),
        flow.state,
        flow.service ? toService(flow.service) : "–",
        length(flow.age_seconds),
        length(flow.idle_seconds),
      ]);
      const numbers = [
        ...said.states.map((row) => [`${row.protocol} ${row.state}`, row.count]),
        ...said.dropped.map((row) => [`dropped: ${row.reason}`, row.count]),
      ].filter(([, number]) => number > 0);
      return [
        facts([meter("flows", said.live, said.max), ["ports for SNAT", said.snat_ports], ...numbers]),
        table("Flows", ["client", "protocol", "frontend", "backend", "state", "service", "age", "idle"], rows),
        said.omitted > 0 && h("p", {}, `${count(said.omitted, "more flow")}: holdfast flows has filters`),
        same("/flows", {}, ["flows"]),
      ];
    },
  );

const apiserverView = () =>
  asking(
    "Which apiserver is used, and why",
    () => ask("/apiserver"),
    (said) => {
      if (!said.enabled) return h("p", {}, "No apiserver is configured.");
      const endpoints = said.endpoints.map((row) => [
        row.address,
        row.tier,
        row.active ? `${row.state}, in use` : row.state,
        moment(row.since),
        row.connections,
        row.last_error ? [row.last_error, " ", moment(row.last_error_at)] : "–",
      ]);
      const watches = said.watches.map((row) => [
        row.kind,
        row.state,
        row.endpoint ?? "–",
        moment(row.heard),
        row.objects,
        row.last_error ?? "–",
      ]);
      const credentials = said.credentials.map((row) => [
        row.tier,
        row.kind,
        moment(row.expires),
        row.problem ?? "–",
      ]);
      return [
        facts([
          ["cluster", said.cluster],
          ["not verified", said.unverified],
          ["changes of endpoint", said.failovers],
          ["memory", said.memory_problem],
        ]),
        table("Endpoints", ["address", "tier", "state", "since", "connections", "last error"], endpoints),
        table("Watches", ["kind", "state", "endpoint", "heard", "objects", "last error"], watches),
        table("Credentials", ["tier", "kind", "expires", "problem"], credentials),
        same("/apiserver", {}, ["apiserver"]),
      ];
    },
  );

const rejectedView = () =>
  asking(
    "Objects that were rejected",
    () => ask("/services"),
    (said) => {
      const rows = said.rejected.map((row) => [row.kind, name(row.name ?? row.place ?? "–"), row.reason]);
      return [
        table("Rejected objects", ["kind", "object", "why"], rows),
        said.rejected_dropped > 0 && h("p", {}, `${count(said.rejected_dropped, "more object")}`),
        same("/services", {}, ["services"]),
      ];
    },
  );

function historyView({ given }) {
  const service = given.get("service") ?? "";
  return asking(
    "What changed, newest first",
    () => askText("/history", { service, limit: RECORDS_SHOWN }),
    (text) => [pastOf(text), same("/history", { service }, ["history", ...(service ? [service] : [])])],
  );
}

// `TIME #NUMBER SERVICE: WHAT; because WHY`, where a gap has no service.
const LINE = /^(\S+) (\S+) (?:([^\s:/]+\/[^\s:/]+): )?(.*?)(?:; because (.*))?$/u;

// The daemon's lines, each as a row, newest first.
function pastOf(text) {
  const lines = text.split("\n").filter(Boolean).reverse();
  const rows = lines.map((line) => {
    const [, time, number, service, what, why] = LINE.exec(line) ?? [null, "", "", "", line];
    return [moment(time), number, toService(service), what, why];
  });
  return table("Changes", ["time", "record", "service", "what clients meet", "because"], rows);
}
