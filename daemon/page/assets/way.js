// The path of a client as a picture: the client, its frontend, the list that decides, the backends.
// Invariant: it is drawn from /explain alone, in the kernel's lookup order; a list reads the same without it.

const BACKENDS_DRAWN = 12;

function wayOf(one) {
  const ways = one.frontends.flatMap((frontend) => {
    const own = way(one, frontend, "a client of this node", frontend.backends, frontend.next);
    if (!frontend.external_backends) return [own];
    const other = "no backend on this node";
    return [own, way(one, frontend, "a client outside of it", frontend.external_backends, other)];
  });
  return [h("h3", {}, "From a client to its backends"), h("ul", { class: "ways" }, ways)];
}

function way({ endpoints }, frontend, client, backends, otherwise) {
  const isOwn = backends === frontend.backends;
  return h(
    "li",
    {},
    wayStep("client", client),
    arrow(),
    wayStep("frontend", frontendName(frontend), frontend.type),
    arrow(),
    wayStep(
      isOwn ? `list ${frontend.verdict}` : "list",
      isOwn && badge(frontend.verdict, frontend.reason),
      count(backends.length, "backend"),
      isOwn && leftOut(endpoints, frontend),
    ),
    arrow(),
    backends.length > 0 ? wayEnds(endpoints, backends) : wayStep("nobody", "nobody", otherwise),
  );
}

// Endpoints of the same port without new clients: how many for each reason.
function leftOut(endpoints, { port_name: port, protocol }) {
  const own = endpoints.filter((endpoint) => endpoint.port_name === port && endpoint.protocol === protocol);
  const counts = new Map();
  for (const why of own.flatMap(({ reasons }) => reasons.filter((reason) => reason.startsWith("not used"))))
    counts.set(why, (counts.get(why) ?? 0) + 1);
  return [...counts].map(([why, number]) => h("div", {}, h("small", {}, `${number} ${why}`)));
}

const arrow = () => h("span", { class: "arrow", "aria-hidden": "true" }, "→");
const wayStep = (kind, ...lines) =>
  h(
    "div",
    { class: `step ${kind}` },
    lines.filter(isSomething).map((line) => h("div", {}, line)),
  );

function wayEnds(endpoints, backends) {
  const share = `${(100 / backends.length).toFixed(1)} %`;
  const drawn = backends.slice(0, BACKENDS_DRAWN).map((backend) => {
    const known = endpoints.find((endpoint) => socket(endpoint.address, endpoint.port) === backend);
    const where = [known?.node, known?.zone].filter(Boolean).join(", ");
    return h("li", {}, `${backend} `, h("small", {}, [share, known?.state, where].filter(Boolean).join(", ")));
  });
  const more = backends.length - drawn.length;
  return h("div", { class: "step backends" }, h("ul", {}, drawn, more > 0 && h("li", {}, `and ${more} more`)));
}

// A user may type an invalid address; then the daemon's error is shown.
async function packetOf(from, to) {
  try {
    return packetWay((await ask("/explain", { endpoint: to, from })).packet);
  } catch (error) {
    return h("p", { class: "bad" }, error.message);
  }
}

// The first packet of a client from somewhere: each step in order.
function packetWay(packet) {
  const backends = packet.backends.map((share) => [
    share.backend,
    `${(share.share * 100).toFixed(1)} %`,
    share.seen_as,
    share.draining ? "draining" : "active",
    share.node && name(share.node),
  ]);
  return h(
    "section",
    {},
    h("h3", {}, `A packet from ${packet.from}`),
    h("p", { class: "sentence" }, packet.sentence),
    h(
      "ol",
      { class: "packet" },
      packet.steps.map((step) => h("li", {}, h("b", {}, `${step.step}: `), step.says)),
    ),
    table("Possible backends", ["backend", "share", "sees the client as", "state", "node"], backends),
    packet.more_backends > 0 && h("p", {}, `and ${packet.more_backends} more`),
  );
}

// The form for a packet: from a client's address to a frontend.
function fromForm(service, { services }, from, to) {
  const rows = services.flatMap((one) => one.frontends).filter((row) => row.type !== "NodePort");
  const dialled = h("input", {
    id: "to",
    value: to || (rows[0] ? frontendName(rows[0]) : ""),
    size: "26",
    list: "dialled",
  });
  const client = h("input", { id: "from", value: from, placeholder: "203.0.113.7", size: "20" });
  const submit = (event) => {
    event.preventDefault();
    const typed = event.target.elements;
    location.hash = link("service", service.split("/"), {
      from: typed.from.value.trim(),
      to: typed.to.value.trim(),
    });
  };
  return h(
    "form",
    { onsubmit: submit },
    h("h3", {}, "A packet from outside"),
    h("label", { for: "from" }, "from "),
    client,
    " ",
    h("label", { for: "to" }, "to "),
    dialled,
    " ",
    h("button", {}, "Show"),
    h(
      "datalist",
      { id: "dialled" },
      rows.map((row) => h("option", { value: frontendName(row) })),
    ),
  );
}
