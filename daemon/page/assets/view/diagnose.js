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
  const about = [kind, [namespace, own].filter(Boolean).join("/")].join(" ");
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

function chooser(view, title) {
  const input = h("input", {
    id: "service",
    placeholder: "namespace/name",
    autocomplete: "off",
    required: true,
    pattern: "[^/]+/[^/]+",
    title: "namespace/name",
  });
  return {
    title,
    root: h(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          location.hash = link(view, input.value.trim().split("/"));
        },
      },
      h("h2", {}, title),
      h("label", { for: "service" }, "Service "),
      input,
      " ",
      h("button", {}, "Look"),
    ),
  };
}
