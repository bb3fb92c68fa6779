// The page's copy of the node's state: each frontend's row, and the answers about the node's health.
// Invariant: a row is as in the last answer or record; an answer that could not be refreshed keeps its last value and
// its age.

const store = {
  rows: new Map(), // by service, its source and frontend
  worst: null, // of each service the worst row, once a view has asked since the last change
  answers: {}, // by path: the last answer, and what went wrong since
  records: [], // the latest changes, newest first
  newest: new Map(), // by service: the number of its latest change, those that changed last at the end
  seq: 0,
  started: null, // when the daemon began that these numbers come from
  filled: 0, // how often everything was asked for
  live: { state: "asking", since: Date.now(), heard: null, why: null },
};

// As many as a person reads through; the history has the rest.
const RECORDS_SHOWN = 200;

// More services than change between two updates of a view.
const NEWEST_MAX = 10_000;

// The most services whose rows are queried one by one; for more, the whole table is queried.
const SERVICES_ASKED = 20;

// The shortest pause between queries of the whole table.
const TABLE_PAUSE = 10_000;

const GENERAL = ["/version", "/readyz", "/services", "/apiserver", "/datapath", "/flows"];

// Only the numbers of flows; only the rejected objects of services, which come with any answer, and no row.
const ASKED_FOR = { "/flows": { limit: 1 }, "/services": { service: "-/-" } };

const watchers = new Set();
const outdated = new Set();
let tableAsked = 0;
let told = false;

// Notifies views at most once per frame, however many changes there are.
function changed() {
  store.worst = null;
  if (told) return;
  told = true;
  requestAnimationFrame(() => {
    told = false;
    for (const watcher of watchers) watcher();
  });
}

function onChange(watcher) {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

const rowKey = ({ service, source }, frontend) => `${service} ${source} ${frontend}`;

// Keeps only the fields that tables show: the backend lists of many services would fill a browser's memory.
function keepRow(rows, row) {
  const key = rowKey(row, frontendName(row));
  const { service, type, source, verdict, reason, health, status, error, since, owner, port_name: port } = row;
  const first = row.backends.slice(0, 3).map((backend) => socket(backend.address, backend.port));
  const text = `${key} ${type} ${verdict} ${reason ?? ""} ${source} ${port}`.toLowerCase();
  const known = { key, service, type, source, verdict, reason, health, status, error, since, owner, port, first, text };
  rows.set(key, { ...known, frontend: frontendName(row), backends: row.backends.length });
}

// A failed query leaves rows that are no longer true.
async function askFrontends(parameters, rows) {
  try {
    await askRows("/frontends", parameters, (row) => keepRow(rows, row));
    store.answers["/frontends"] = { at: Date.now() };
  } catch (error) {
    store.answers["/frontends"] = { ...store.answers["/frontends"], error: String(error.message ?? error) };
    changed();
    throw error;
  }
}

async function askTable() {
  const [rows, since] = [new Map(), store.seq];
  tableAsked = Date.now();
  await askFrontends({}, rows);
  store.rows = rows;
  learnAgain(since);
}

async function askService(service) {
  const [fresh, since] = [new Map(), store.seq];
  await askFrontends({ service }, fresh);
  // Remaining rows keep their place among all rows.
  for (const [key, row] of store.rows) if (row.service === service && !fresh.has(key)) store.rows.delete(key);
  for (const [key, row] of fresh) store.rows.set(key, row);
  learnAgain(since);
}

// A record during a query may be newer than the answer.
function learnAgain(since) {
  const newer = store.records.filter((record) => record.seq > since);
  if (newer.length === RECORDS_SHOWN) needTable();
  newer.reverse().forEach(learnTransitions);
  changed();
}

// The small answers. Each may fail by itself.
async function askGeneral(paths = GENERAL) {
  for (const path of paths) {
    try {
      store.answers[path] = { value: await ask(path, ASKED_FOR[path] ?? {}), at: Date.now() };
    } catch (error) {
      store.answers[path] = { ...store.answers[path], error: String(error.message ?? error) };
    }
    changed();
  }
}

// What the page shows of these paths is old.
const unasked = () => [...GENERAL, "/frontends"].filter((path) => store.answers[path]?.error);

const answer = (path) => store.answers[path]?.value;

// Whether the table was loaded at least once: before that, a missing row proves nothing.
const isLoaded = () => store.filled > 0;

// Whether the daemon does not answer now, so that all data is old.
const isGone = () => store.live.state === "gone";

// A heartbeat comes every five seconds; without a stream, an answer every fifteen or so.
const QUIET_LIMIT = { live: 8_000, polling: 30_000 };

// Whether the daemon was heard a moment ago: nothing else is a sign that all is well.
const isHeard = () => Date.now() - (store.live.heard ?? 0) < (QUIET_LIMIT[store.live.state] ?? 0);

// The sources whose first list is missing, so that a service that is not here may still come.
const missingLists = () =>
  (answer("/readyz")?.sources ?? []).filter(({ synced }) => !synced).map(({ source }) => source);

// One record of the history or of the stream. It has the new verdicts, so most records need no query.
function learn(record) {
  if (record.kind === "gap") return needTable();
  if (record.kind === "change") enlist(record);
  else if (!record.transitions?.length) return;
  learnTransitions(record);
  changed();
}

// The stream begins before the history is read, so both may have a record.
function enlist(record) {
  store.newest.delete(record.service);
  store.newest.set(record.service, record.seq);
  if (store.newest.size > NEWEST_MAX) store.newest.delete(store.newest.keys().next().value);
  if (record.seq <= store.records[0]?.seq) return;
  store.seq = Math.max(store.seq, record.seq);
  store.records.unshift(record);
  store.records.length = Math.min(store.records.length, RECORDS_SHOWN);
}

function learnTransitions(record) {
  if (record.transitions_omitted) outdated.add(record.service);
  for (const transition of record.transitions ?? []) learnTransition(record, transition);
}

// Only the row has the error and the owner of an address.
function learnTransition(record, { frontends, frontends_omitted: omitted, after }) {
  if (omitted || after?.status === "error" || after?.verdict === "conflict") outdated.add(record.service);
  for (const frontend of frontends) {
    const key = rowKey(record, frontend);
    const row = store.rows.get(key);
    if (!after) store.rows.delete(key);
    else if (!row) outdated.add(record.service);
    else Object.assign(row, met(row, record, after));
  }
}

function met(row, record, { verdict, reason = null, health: told, backends, status, owner = null }) {
  const text = `${row.key} ${row.type} ${verdict} ${reason ?? ""} ${row.source} ${row.port}`.toLowerCase();
  const health = told ?? healthOf({ verdict, reason });
  return { verdict, reason, health, backends, status, error: null, owner, since: record.time, first: null, text };
}

function needTable() {
  outdated.add("");
}

// Queries the data that records omitted.
async function catchUp() {
  if (outdated.size === 0) return;
  const services = [...outdated];
  if (services.length <= SERVICES_ASKED && !outdated.has("")) {
    outdated.clear();
    for (const service of services) await askService(service);
  } else if (Date.now() - tableAsked > TABLE_PAUSE) {
    outdated.clear();
    await askTable();
  }
}
