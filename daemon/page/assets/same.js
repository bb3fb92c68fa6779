// The same query elsewhere: as curl, on the command line, as JSON.
// Invariant: the copied text, typed on the node, gives the shown data.

function shellQuoted(text) {
  return /^[\w./:=@%+,-]+$/u.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function same(path, parameters, command, of) {
  const url = `localhost:${location.port || 80}${pathOf(path, parameters)}`;
  const words = command.map(shellQuoted).join(" ");
  const json = async () => JSON.stringify(await ask(path, parameters), null, 2);
  return h(
    "p",
    { class: "same" },
    of ? `${of} elsewhere: ` : "This answer elsewhere: ",
    copier("curl", () => `curl ${shellQuoted(url)}`),
    copier("command line", () => `holdfast ${words}`),
    copier("JSON", path === "/history" ? () => askRaw(path, parameters) : json),
  );
}

function copier(what, text) {
  const button = h("button", { type: "button", onclick: () => copy(button, what, text) }, `Copy ${what}`);
  return button;
}

async function copy(button, what, text) {
  try {
    await navigator.clipboard.writeText(await text());
    button.textContent = `Copied ${what}`;
  } catch {
    // Without access to the clipboard the text is shown for manual copying.
    const shown = h("textarea", { readonly: true, "aria-label": what, rows: "3" });
    shown.value = await text();
    // Where nothing is redrawn.
    current.root.after(shown);
  }
}
