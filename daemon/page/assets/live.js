// The one stream of the page, with all changes and the daemon's heartbeat.
// Invariant: nothing is missed silently. A broken stream is restarted, with growing pauses, and the history supplies
// the records in between; a silent or missing daemon is shown, with the age of the data.

const PAUSE_MIN = 500;
const PAUSE_MAX = 10_000;

// The daemon sends a heartbeat every five seconds.
const SILENCE_LIMIT = 12_000;

// The most records of one answer of the history; after more than that, everything is queried again.
const GAP_LIMIT = 10_000;

// Numbers that no record has: fill of the maps, flows, refusals, the apiserver.
const GENERAL_PAUSE = 5_000;

// A browser has six connections for all tabs of one daemon. A hidden page closes its own after this time.
const UNSEEN_LIMIT = 30_000;

const sleep = (time) =>
  new Promise((wake) => {
    setTimeout(wake, time);
  });

function say(state, why = null) {
  if (store.live.state !== state) store.live = { ...store.live, state, since: Date.now() };
  store.live.why = why;
  changed();
}

async function follow() {
  let pause = PAUSE_MIN;
  for (;;) {
    await seen();
    const begun = Date.now();
    await watchOnce().catch(without);
    if (Date.now() - begun > SILENCE_LIMIT) pause = PAUSE_MIN;
    await sleep(pause * (0.8 + 0.4 * Math.random()));
    pause = Math.min(pause * 2, PAUSE_MAX);
  }
}

async function seen() {
  while (document.hidden) {
    await new Promise((wake) => {
      document.addEventListener("visibilitychange", wake, { once: true });
    });
  }
}

// Without a stream, the daemon is polled if it answers: other pages may hold all streams, or a proxy may hold ours
// back.
async function without(error) {
  const why = String(error.message ?? error);
  if (!(error instanceof Refused) && store.live.state !== "polling") say("gone", why);
  await fill().then(
    () => {
      store.live.heard = Date.now();
      say("polling", why);
    },
    (failure) => say("gone", String(failure.message ?? failure)),
  );
}

const UNSEEN = "the page is hidden";

// From the start of one stream to its end.
async function watchOnce() {
  const given = new AbortController();
  const endIn = (time, why) => setTimeout(() => given.abort(new Error(why)), time);
  let silence = endIn(SILENCE_LIMIT, "the stream is silent");
  let unseen = 0;
  const look = () => {
    clearTimeout(unseen);
    if (document.hidden) unseen = endIn(UNSEEN_LIMIT, UNSEEN);
  };
  document.addEventListener("visibilitychange", look, { signal: given.signal });
  look();
  try {
    const stream = await fetch("/watch", { signal: given.signal, headers: { accept: "text/event-stream" } });
    if (!stream.ok) throw new Refused(stream.status, await saidIn(stream));
    const early = [];
    let [known, heard] = [false, false];
    const filled = fill().then(() => {
      known = true;
      early.splice(0).forEach(learn);
      if (heard) say("live");
    });
    filled.catch((error) => given.abort(error));
    await eachEvent(
      stream.body,
      () => {
        heard = true;
        store.live.heard = Date.now();
        if (known && store.live.state !== "live") say("live");
        clearTimeout(silence);
        silence = endIn(SILENCE_LIMIT, "the stream is silent");
      },
      (event, data) => {
        if (event !== "record") throw new Error(data.why);
        if (known) learn(data);
        else early.push(data);
      },
    );
    await filled;
    throw new Error("the stream ended");
  } catch (error) {
    const why = given.signal.aborted ? given.signal.reason : error;
    if (why.message !== UNSEEN) throw why;
    say("asking");
  } finally {
    clearTimeout(silence);
    clearTimeout(unseen);
    given.abort();
  }
}

// Loads the state at the start of a stream: everything the first time, else the records since the last stream.
async function fill() {
  const { started } = await ask("/version");
  const isKnown = store.seq > 0 && store.started === started;
  const missed = isKnown ? await askLines("/history", { after: store.seq, limit: GAP_LIMIT }) : null;
  if (missed && missed.length < GAP_LIMIT && !missed.some((record) => record.kind === "gap")) {
    missed.forEach(learn);
    return askGeneral();
  }
  const ready = await ask("/readyz");
  // The stream repeats records from here on, which does no harm.
  store.seq = ready.history.seq;
  await askGeneral();
  await askTable();
  const from = Math.max(0, store.seq - RECORDS_SHOWN);
  store.records = (await askLines("/history", { after: from, limit: RECORDS_SHOWN }))
    .reverse()
    .filter((record) => record.kind === "change");
  store.newest.clear();
  Object.assign(store, { started, filled: store.filled + 1 });
  changed();
}

// Server-sent events: `event:` and `data:` lines, separated by an empty one; a comment is only a heartbeat.
async function eachEvent(body, alive, event) {
  let kind = "";
  await eachLine(body, (line) => {
    alive();
    if (line.startsWith("event: ")) kind = line.slice(7);
    else if (line.startsWith("data: ")) event(kind, JSON.parse(line.slice(6)));
  });
}

async function askAlong() {
  for (;;) {
    await sleep(GENERAL_PAUSE);
    if (store.live.state === "live") await askGeneral();
  }
}

async function catchUpAlong() {
  for (;;) {
    await sleep(PAUSE_MIN);
    await catchUp().catch(() => needTable());
  }
}
