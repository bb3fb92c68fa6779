// Questions to the daemon that serves this page.
// Invariant: only paths of this origin, only reads, each with a limit of time; a refusal keeps the daemon's own words.

// Longer than the daemon takes for its longest answer but a diagnosis, which says its own limit.
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
  const answer = await fetch(pathOf(path, parameters), { signal, headers: { accept: "application/json" } });
  // /readyz says with 503 what is not well, in the same words.
  if (answer.ok || (path === "/readyz" && answer.status === 503)) return answer;
  const said = await answer.json().catch(() => ({ error: `the daemon answered ${answer.status}` }));
  if (said.error) throw new Refused(answer.status, said);
  return new Response(JSON.stringify(said), { status: 200 });
}

const ask = async (path, parameters, limit) =>
  (await response(path, { ...parameters, format: "json" }, limit)).json();
const askText = async (path, parameters) => (await response(path, { ...parameters, format: "table" })).text();
const askLines = async (path, parameters) =>
  (await askRaw(path, parameters))
    .split("\n")
    .filter(Boolean)
    .map((line) => JSON.parse(line));
const askRaw = async (path, parameters) => (await response(path, { ...parameters, format: "json" })).text();

// Each row of a large table as it comes. The daemon writes a row in a line, so that nobody has to hold all of it.
async function askRows(path, parameters, row) {
  const answer = await response(path, { ...parameters, format: "json" }, 60_000);
  await eachLine(answer.body, (line) => {
    if (line.startsWith("{") && line.includes('"verdict"')) row(JSON.parse(line.replace(/,$/, "")));
  });
}

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
