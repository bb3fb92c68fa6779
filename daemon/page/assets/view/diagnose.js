// The problems of a service and the next step, and the Events of the cluster.
// Invariant: a person starts each diagnosis: it dials backends, and the daemon allows few at a time.

const DIAGNOSIS_LIMIT = 20_000;
const STATES = { error: "✕", warning: "!", unknown: "?", info: "i", ok: "●", skipped: "–" };

function diagnoseView({ rest: [namespace, own] }) {
  if (!own) return chooser("diagnose", "What is wrong with a service?");
  const service = `${namespace}/${own}`;
  const root = h("div", {}, h("p", {}, "Looking… this takes up to five seconds."));
  const look = async () => {
    try {
      const said = await askBeside("/diagnose", { service }, DIAGNOSIS_LIMIT);
      renew(
        root,
        diagnosis(service, said),
        h("button", { type: "button", onclick: look }, "Look again"),
        same("/diagnose", { service }, ["diagnose", service]),
      );
    } catch (error) {
      renew(
        root,
        h("p", { class: "bad" }, `${service}: ${error.message}`),
        h("button", { type: "button", onclick: look }, "Look again"),
      );
    }
  };
  look();
  return { title: `Diagnose ${service}`, root };
}

function diagnosis(service, { verdict, findings, taken }) {
  const rank = Object.keys(STATES);
  const shown = findings
    .filter((one) => one.state !== "ok" && one.state !== "skipped")
    .sort((one, other) => rank.indexOf(one.state) - rank.indexOf(other.state));
  const rest = findings.filter((one) => one.state === "ok" || one.state === "skipped");
  return [
    h("h2", {}, "Diagnosis of ", toService(service)),
    h("p", { class: "sentence" }, verdict.headline),
    verdict.next && h("p", {}, h("b", {}, "Next: "), verdict.next.text, ` (risk: ${verdict.next.risk})`),
    h("p", {}, badge(verdict.state, verdict.reason), " taken ", moment(taken)),
    findingsTable("What was found", shown),
    h(
      "details",
      {},
      h("summary", {}, `${rest.length} checks are well or do not apply`),
      findingsTable("The other checks", rest),
    ),
  ];
}

function findingsTable(caption, findings) {
  const rows = findings.map((one) => [
    one.id,
    `${STATES[one.state] ?? ""} ${one.state}`,
    one.message,
    one.remedies.map(remedyOf),
  ]);
  return table(caption, ["check", "state", "says", "what helps"], rows);
}

function remedyOf({ text, risk, command }) {
  return h("div", {}, text, ` (risk: ${risk})`, command && h("div", {}, h("code", {}, command)));
}

function eventsView({ rest: [namespace, own] }) {
  const service = own ? `${namespace}/${own}` : "";
  return asking(
    service ? `Events of ${service}` : "Events of the cluster",
    () => ask("/events", { service }),
    (said) => [
      said.why_not && h("p", { class: "bad" }, `Events could not be read: ${said.why_not}`),
      (said.events.length > 0 || !said.why_not) &&
        table("Events", ["last", "about", "reason", "says", "means", "what helps"], said.events.map(eventRow)),
      said.omitted > 0 && h("p", {}, `${count(said.omitted, "older event")}`),
      same("/events", { service }, ["events", ...(service ? [service] : [])]),
    ],
  );
}

function eventRow(event) {
  const { kind, namespace, name: own } = event.object;
  const full = [namespace, own].filter(Boolean).join("/");
  const about = [`${kind} `, kind === "Service" ? toService(full) : name(full)];
  const means = [event.meaning, event.cause?.means].filter(isSomething).map((text) => h("div", {}, text));
  return [
    moment(event.last),
    about,
    [event.reason, ` ×${event.count}`],
    event.message,
    means,
    event.remedies.map(remedyOf),
  ];
}

// The names that are offered for a beginning: as many as a person reads.
const OFFERED = 20;

// Asks for a service: names those whose clients fail, and completes what is typed.
function chooser(view, title) {
  const names = h("datalist", { id: "names" });
  const input = h("input", {
    id: "service",
    list: "names",
    placeholder: "namespace/name",
    autocomplete: "off",
    required: true,
    size: "40",
    oninput: () => {
      input.setCustomValidity("");
      names.replaceChildren(...likeIt(input.value).map((service) => h("option", { value: service })));
    },
  });
  const submit = (event) => {
    event.preventDefault();
    const typed = input.value.trim();
    const found = typed.includes("/") ? [typed] : likeIt(typed).filter((service) => service.endsWith(`/${typed}`));
    if (found.length === 1) location.hash = link(view, found[0].split("/"));
    else {
      input.setCustomValidity(found.length > 1 ? `${found.join(", ")}: which one?` : "namespace/name");
      input.reportValidity();
    }
  };
  const broken = h("div");
  return {
    title,
    root: h(
      "div",
      {},
      h("h2", {}, title),
      h(
        "form",
        { onsubmit: submit },
        h("label", { for: "service" }, "Service "),
        input,
        names,
        " ",
        h("button", {}, "Look"),
      ),
      broken,
    ),
    update: () => renew(broken, brokenServices(view)),
  };
}

function likeIt(typed) {
  const all = new Set([...store.rows.values()].map(({ service }) => service));
  return [...all].filter((service) => service.includes(typed.trim())).slice(0, OFFERED);
}

// The newest of each cause, so that many of one do not hide the others.
const OF_A_CAUSE = 5;

function brokenServices(view) {
  if (!areServicesKnown()) return h("p", {}, unknownWords());
  const causes = new Map();
  const found = worstOf((row) => row.health !== "well").sort((one, other) => rank(one) - rank(other));
  const shown = found.filter(({ verdict, reason }) => {
    const cause = `${verdict} ${reason}`;
    causes.set(cause, (causes.get(cause) ?? 0) + 1);
    return causes.get(cause) <= OF_A_CAUSE;
  });
  const rows = shown
    .slice(0, OFFERED)
    .map((row) => [
      h("a", { href: link(view, row.service.split("/")) }, name(row.service)),
      badge(row.verdict, row.reason),
      ago(row.since),
    ]);
  const more = found.length - rows.length;
  const rest = h("a", { href: link("frontends", [], { verdict: "failing" }) }, `and ${more.toLocaleString("en")} more`);
  return [
    table("Services that need a look, the newest of each cause", ["service", "clients meet", "since"], rows),
    more > 0 && h("p", {}, rest),
  ];
}
