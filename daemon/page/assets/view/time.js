// Several services on one axis of time: which lost its list first, and by which writer.
// Invariant: the address has their names, so that the picture can be sent to another reader.

const SERVICES_COMPARED = 8;

function timeView({ given }) {
  const services = (given.get("services") ?? "")
    .split(",")
    .map((word) => word.trim())
    .filter(Boolean);
  const input = h("input", {
    id: "services",
    value: services.join(","),
    size: "60",
    autocomplete: "off",
    placeholder: "default/kubernetes,default/kubernetes-intranet",
  });
  const form = h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        location.hash = link("time", [], { services: input.value });
      },
    },
    h("label", { for: "services" }, `Services, with commas (${SERVICES_COMPARED} at most) `),
    input,
    " ",
    h("button", {}, "Show"),
  );
  const shown = services.slice(0, SERVICES_COMPARED);
  const strip = shown.length > 0 && stripOf(shown);
  const lately = [...new Set(store.records.map((record) => record.service))]
    .filter(Boolean)
    .slice(0, SERVICES_COMPARED);
  const offer =
    lately.length > 0 &&
    h("p", {}, h("a", { href: link("time", [], { services: lately.join(",") }) }, "Those that changed last"));
  let seen = null;
  const update = async () => {
    const newer = shown.map(newest).join();
    if (!strip || seen === newer) return;
    seen = newer;
    await strip.update();
  };
  return {
    title: "Time",
    root: h("div", {}, h("h2", {}, "Services over time"), form, offer, strip && strip.root, shown.map(sameStory)),
    update,
    pause: AGAIN,
  };
}

const sameStory = (service) => same("/history", { service }, ["history", service], service);
