// The one stream of the page: what changes comes by it, and so does the sign that the daemon is there.
// Invariant: nothing is missed in silence. A stream that broke is begun anew, ever less often, and what happened
// meanwhile is read from the history; a daemon that is silent or gone is said, with the age of what is shown.

const PAUSE_MIN = 500;
const PAUSE_MAX = 10_000;

// The daemon says every five seconds that it is there.
const SILENCE_LIMIT = 12_000;

// As many as one answer of the history has; after more than that everything is asked for anew.
const GAP_LIMIT = 10_000;

// Numbers that no record tells: fill of the maps, flows, refusals, the apiserver. Slower while nobody looks.
const GENERAL_PAUSE = 5_000;
const GENERAL_PAUSE_HIDDEN = 60_000;

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
    const begun = Date.now();
    await watchOnce().catch(without);
    if (Date.now() - begun > SILENCE_LIMIT) pause = PAUSE_MIN;
    await sleep(pause * (0.8 + 0.4 * Math.random()));
    pause = Math.min(pause * 2, PAUSE_MAX);
  }
}

// There is no stream. Where the daemon refuses one, because others have them all, it is asked in its place.
async function without(error) {
  const why = String(error.message ?? error);
  if (!(error instanceof Refused)) return say("gone", why);
  await fill().then(
    () => {
      store.live.heard = Date.now();
      say("polling", why);
    },
    (failure) => say("gone", String(failure.message ?? failure)),
  );
}

// From one beginning of the stream to its end.
async function watchOnce() {
  const given = new AbortController();
  let silence = setTimeout(() => given.abort(), SILENCE_LIMIT);
  try {
    const stream = await fetch("/watch", { signal: given.signal, headers: { accept: "text/event-stream" } });
    if (!stream.ok) throw await refusal(stream);
    const early = [];
    let known = false;
    const filled = fill().then(() => {
      known = true;
      early.splice(0).forEach(learn);
      say("live");
    });
    filled.catch(() => given.abort());
    await eachEvent(
      stream.body,
      () => {
        store.live.heard = Date.now();
        clearTimeout(silence);
        silence = setTimeout(() => given.abort(), SILENCE_LIMIT);
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
    throw given.signal.aborted ? new Error("the daemon is silent") : error;
  } finally {
    clearTimeout(silence);
    given.abort();
  }
}

async function refusal(answer) {
  const said = await answer.json().catch(() => ({ error: `the daemon answered ${answer.status}` }));
  return new Refused(answer.status, said);
}

// What is known when the stream begins: everything the first time, else what happened while there was none.
async function fill() {
  const { started } = await ask("/version");
  const isKnown = store.seq > 0 && answer("/version")?.started === started;
  const missed = isKnown ? await askLines("/history", { after: store.seq, limit: GAP_LIMIT }) : null;
  if (missed && missed.length < GAP_LIMIT && !missed.some((record) => record.kind === "gap")) {
    missed.forEach(learn);
    return askGeneral();
  }
  const ready = await ask("/readyz");
  // What is recorded from here on is learnt once more from the stream, which does no harm.
  store.seq = ready.history.seq;
  await Promise.all([askTable(), askGeneral()]);
  const from = Math.max(0, store.seq - RECORDS_SHOWN);
  store.records = (await askLines("/history", { after: from, limit: RECORDS_SHOWN }))
    .reverse()
    .filter((record) => record.kind === "change");
  changed();
}

// Server-sent events: `event:` and `data:` in lines, an empty one between two; a comment only shows that it lives.
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
    await sleep(document.hidden ? GENERAL_PAUSE_HIDDEN : GENERAL_PAUSE);
    if (store.live.state === "live") await askGeneral();
  }
}

async function catchUpAlong() {
  for (;;) {
    await sleep(PAUSE_MIN);
    await catchUp().catch(() => needTable());
  }
}
