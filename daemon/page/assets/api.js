// Queries to the daemon that serves this page.
// Invariant: only paths of this origin, only reads, each with a timeout; a refusal keeps the daemon's own words.
// One query at a time, so that a page uses one connection: the daemon has 128 for all pages and programs.

// Longer than the daemon's slowest answer except a diagnosis, which has its own limit.
const ASK_LIMIT = 15_000;

class Refused extends Error {
  constructor(status, said) {
    super(said.hint ? `${said.error}; ${said.hint}` : said.error);
    this.status = status;
  }
}

function pathOf(path, parameters = {}) {
  const given = Object.entries(parameters).filter(
    ([, value]) => value !== undefined && value !== null && value !== "",
  );
  const query = new URLSearchParams(given).toString();
  return query ? `${path}?${query}` : path;
}

async function response(path, parameters, limit = ASK_LIMIT) {
  const signal = AbortSignal.timeout(limit);
  const headers = { accept: "application/json" };
  const answer = await fetch(pathOf(path, parameters), { signal, headers }).catch((error) => {
    throw error.name === "TimeoutError" ? new Error(`no answer within ${span(limit)}`) : error;
  });
  hearTime(answer);
  if (answer.ok) return answer;
  const said = await saidIn(answer);
  if (said.error) throw new Refused(answer.status, said);
  // An unhealthy or unknown state has the same form.
  return new Response(JSON.stringify(said), { status: 200 });
}

// The daemon's refusal; if all connections are taken, it is text.
async function saidIn(answer) {
  const text = await answer.text().catch(() => "");
  try {
    return JSON.parse(text);
  } catch {
    const words = text
      .slice(0, 300)
      .replace(/^error: /u, "")
      .trim()
      .replaceAll("\n", "; ");
    return { error: words || `the daemon answered ${answer.status}` };
  }
}

// How far the node's clock is ahead of this computer's, by the date of an answer, to the second.
let ahead = 0;

function hearTime(answer) {
  const date = Date.parse(answer.headers.get("date") ?? "");
  if (!Number.isNaN(date)) ahead = date - Date.now();
}

// A smaller difference is the latency of an answer, and the second that a date omits.
const CLOCKS_AGREE = 3_000;
const nodeTime = () => Date.now() + (Math.abs(ahead) > CLOCKS_AGREE ? ahead : 0);

// Settles when the last query ends, successful or not.
let turn = Promise.resolve();

// Runs a query and reads its answer after all earlier ones. Its timeout begins with its turn.
function inTurn(question) {
  const answer = turn.then(question);
  turn = answer.catch(() => undefined);
  return answer;
}

const askWhole = (path, parameters) => inTurn(async () => (await response(path, parameters)).text());
const askText = (path, parameters) => askWhole(path, { ...parameters, format: "table" });
const askRaw = (path, parameters) => askWhole(path, { ...parameters, format: "json" });
const ask = async (path, parameters) => JSON.parse(await askRaw(path, parameters));
const askLines = async (path, parameters) =>
  (await askRaw(path, parameters))
    .split("\n")
    .filter(Boolean)
    .map((line) => JSON.parse(line));

// A slow query has a connection of its own, and the others go on in parallel.
const askBeside = async (path, parameters, limit) =>
  (await response(path, { ...parameters, format: "json" }, limit)).json();

// Each row of a large table as it arrives. The daemon writes one row per line, so neither end has to hold the table.
const askRows = (path, parameters, row) =>
  inTurn(async () => {
    const answer = await response(path, { ...parameters, format: "json" }, 60_000);
    await eachLine(answer.body, (line) => {
      if (line.startsWith("{") && line.includes('"verdict"')) row(JSON.parse(line.replace(/,$/, "")));
    });
  });

async function eachLine(body, line) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    lines.forEach(line);
  }
  if (rest) line(rest);
}
