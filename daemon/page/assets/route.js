// The shown view and its parameters: both are in the part of the address after #.
// Invariant: a copied address shows the same view wherever it is opened, on a node with the same data.

function route() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  const [view = "", ...rest] = path.split("/").filter(Boolean).map(decoded);
  return { view: view || "now", rest, given: new URLSearchParams(query) };
}

// An address that a user typed or cut off may be no valid text; it is shown unchanged.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function link(view, rest = [], given = {}) {
  const query = new URLSearchParams(Object.entries(given).filter(([, value]) => value)).toString();
  return `#/${[view === "now" ? "" : view, ...rest].map(encodeURIComponent).join("/")}${query ? `?${query}` : ""}`;
}

const serviceLink = (service) => link("service", service.split("/"));
const toService = (service) => (service ? h("a", { href: serviceLink(service) }, name(service)) : "–");

// Changes the filter of the same view: it is in the address, and going back leaves the view instead of undoing one
// letter.
function rewrite(given) {
  const { view, rest } = route();
  history.replaceState(null, "", link(view, rest, given));
}
