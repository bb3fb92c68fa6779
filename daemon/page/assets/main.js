// The page as a whole: its frame, the view in it, and the loops that update both.
// Invariant: one view lives at a time; its timers and listeners end with it.

const VIEWS = {
  now: nowView,
  frontends: frontendsView,
  service: serviceView,
  time: timeView,
  history: historyView,
  refusals: refusalsView,
  flows: flowsView,
  apiserver: apiserverView,
  events: eventsView,
  diagnose: diagnoseView,
  rejected: rejectedView,
};
const TABS = {
  now: "Now",
  frontends: "Frontends",
  time: "Timeline",
  history: "History",
  refusals: "Refusals",
  flows: "Flows",
  apiserver: "Apiserver",
  events: "Events",
  diagnose: "Diagnose",
};

const place = (id) => document.getElementById(id);
let current = { root: h("div") };
let end = () => {};

function show() {
  const asked = route();
  const view = (Object.hasOwn(VIEWS, asked.view) ? VIEWS[asked.view] : nowView)(asked);
  end();
  current = view;
  replace(place("main"), view.root);
  tabs(asked.view);
  title();
  const isSeen = () => current === view && !document.hidden;
  const update = paced(() => (isSeen() ? view.update?.() : null), view.pause ?? PAUSE);
  const stop = onChange(update);
  const timer = view.every ? setInterval(update, view.every) : 0;
  document.addEventListener("visibilitychange", update);
  end = () => {
    stop();
    clearInterval(timer);
    document.removeEventListener("visibilitychange", update);
  };
  update();
  view.shown?.();
}

// As often as a person reads changes, however many there are; views that draw a lot have a longer pause. A browser
// frees memory more slowly than many redraws a second discard it.
const PAUSE = 1_000;

// Runs once per pause, one run at a time, and once more if requested meanwhile. A run never waits for the next one:
// under constant change there is always a next one, and each would be held until the last. A single change is shown
// within a second; only constant change gets longer pauses.
function paced(run, pause) {
  let [busy, again, wait] = [false, false, PAUSE];
  return async () => {
    again = true;
    if (busy) return;
    busy = true;
    try {
      while (again) {
        again = false;
        await Promise.all([run(), sleep(wait)]);
        wait = again ? Math.min(2 * wait, pause) : PAUSE;
      }
    } finally {
      busy = false;
    }
  };
}

function tabs(chosen) {
  renew(
    place("tabs"),
    h(
      "ul",
      {},
      Object.entries(TABS).map(([view, words]) =>
        h("li", {}, h("a", { href: link(view), "aria-current": view === chosen ? "page" : null }, words)),
      ),
    ),
  );
}

function title() {
  const node = answer("/version")?.node;
  document.title = visible([current.title, node, "holdfast"].filter(Boolean).join(" – "));
}

// Green only if all was asked a moment ago and answered: a last answer proves nothing.
function healthWords() {
  const isSilent = store.live.heard && store.live.state !== "asking" && !isHeard();
  if (isGone()) return ["unknown", "? not known: the daemon does not answer"];
  if (isSilent) return ["unknown", "? not known: the daemon is silent"];
  if (!isHeard() || !isLoaded() || !answer("/readyz")) return ["unknown", "? not known yet"];
  const bad = problemWords();
  if (bad) return ["bad", `✕ ${bad}`];
  if (unasked().length > 0) return ["unknown", `? not known: ${unasked().join(", ")} could not be queried`];
  const last = worstOf(({ verdict }) => isLast(verdict)).length;
  if (last === 0) return ["good", "● no problem"];
  const held = count(last, "service on its last backends", "services on their last backends");
  return ["good", `● no client fails; ${held}`];
}

// The state of the node and the age of that data: on every view.
function frame() {
  const version = answer("/version");
  renew(place("node"), version ? `${version.version} on ${version.node}` : "");
  pulse();
  title();
}

// Without any news, too, each second makes the data older.
function pulse() {
  const [tone, words] = healthWords();
  place("health").className = tone;
  renew(place("health"), words);
  document.body.classList.toggle("old", Boolean(store.live.heard) && !isHeard());
  alive();
}

function alive() {
  const { state, since, heard, why } = store.live;
  // It is not read out each time it grows.
  const age = h("span", { "aria-live": "off" }, span(Date.now() - (heard ?? since)));
  const silent = ["nothing heard for ", age, dated(heard)];
  const words = {
    asking: heard ? ["asking again", dated(heard)] : "asking…",
    live: isHeard() ? live() : silent,
    polling: isHeard() ? `asked every few seconds: ${why ?? ""}` : silent,
  }[state] ?? ["the daemon has not answered for ", age, `: ${why ?? ""}`, dated(heard)];
  renew(place("alive"), words);
}

// What a reader needs to compare times, or to wait for a number to change.
function live() {
  const other = Math.abs(ahead) > CLOCK_TOLD && `${span(Math.abs(ahead))} ${ahead > 0 ? "ahead of" : "behind"}`;
  return [
    "live",
    other && `the node's clock is ${other} this computer's`,
    unasked().length > 0 && `${unasked().join(", ")} could not be queried`,
  ]
    .filter(Boolean)
    .join("; ");
}

const CLOCK_TOLD = 60_000;

function clockChoice() {
  const choice = (utc, words) =>
    h(
      "label",
      {},
      h("input", {
        type: "radio",
        name: "clock",
        checked: clock.utc === utc,
        onchange: () => {
          clock.utc = utc;
          remember("utc", utc ? "yes" : "no");
          show();
        },
      }),
      ` ${words} `,
    );
  place("clock").append(choice(false, "of this computer"), choice(true, "UTC"));
}

// The address of its link would be that of another view.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  place("main").focus();
});

clockChoice();
addEventListener("hashchange", () => {
  show();
  place("main").focus({ preventScroll: true });
  scrollTo(0, 0);
});
onChange(paced(frame, PAUSE));
for (const event of ["beforeprint", "afterprint"]) addEventListener(event, (told) => current.printed?.(told));
setInterval(pulse, 1_000);
show();
follow();
askAlong();
catchUpAlong();
