// Which view is shown, and what it is given: both stand in the part of the address after #.
// Invariant: an address that is copied shows the same view wherever it is opened, on a node where that is true.

function route() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  const [view = "", ...rest] = path.split("/").filter(Boolean).map(decoded);
  return { view: view || "now", rest, given: new URLSearchParams(query) };
}

// What a user typed or cut off may be no text at all; it is shown as it stands then.
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

// Another filter of the same view: the address says it, and going back leaves the view, not a letter of a word.
function rewrite(given) {
  const { view, rest } = route();
  history.replaceState(null, "", link(view, rest, given));
}
