//! `import`: converts another load balancer's services to blocks of a configuration.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use holdfast_core::str_enum::StrEnum;
use serde_json::json;

use super::Exit;
use super::report::Report;
use holdfast_config::Config;
use holdfast_import::{self as import, BYTES_MAX, Format, ImportOutcome};

/// The file name for standard input.
const STANDARD_INPUT: &str = "-";

pub(super) fn parse_format(text: &str) -> Result<Format, String> {
    let legal = || Format::ALL.iter().map(|format| format.spelling()).collect::<Vec<_>>().join(", ");
    let named = Format::ALL.iter().copied().find(|format| format.spelling() == text);
    named.ok_or_else(|| format!("legal are {}", legal()))
}

/// Reports the result: blocks that are complete, or what remains to be done.
pub(super) fn import_file(path: &Path, from: Option<Format>) -> Report {
    let name = path.display().to_string();
    let text = match read_input(path) {
        Ok(text) => text,
        Err(error) => return refuse_import(&format!("{name}: {error}")),
    };
    match from.or_else(|| Format::detect(&text)) {
        Some(format) => build_report(&name, import::import(format, &name, &text)),
        None => refuse_import(&format!("{name}: the format is not recognised; name it with --from")),
    }
}

fn read_input(path: &Path) -> io::Result<String> {
    let source: Box<dyn Read> =
        if path == Path::new(STANDARD_INPUT) { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
    let mut text = String::new();
    source.take(BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    if text.len() > BYTES_MAX {
        let most = BYTES_MAX >> 20;
        return Err(io::Error::other(format!(
            "it is longer than {most} MiB: give the part with the services"
        )));
    }
    Ok(text)
}

fn refuse_import(why: &str) -> Report {
    let json = json!({"configuration": null, "notes": [], "errors": [why]});
    Report { exit: Exit::Config, json, good: Vec::new(), bad: vec![format!("error: {why}")] }
}

fn build_report(name: &str, imported: ImportOutcome) -> Report {
    let ImportOutcome { text, notes } = imported;
    let refused = Config::parse(&text, "what was written").err();
    let errors: Vec<String> =
        refused.into_iter().flat_map(|refused| refused.errors).map(|error| error.with_values()).collect();
    let noted = notes.iter().map(|note| format!("{name}: {note}"));
    let bad: Vec<String> = noted.chain(errors.iter().map(|error| format!("to mend: {error}"))).collect();
    let listed: Vec<_> =
        notes.iter().map(|note| json!({"line": note.line, "message": note.message})).collect();
    Report {
        exit: if bad.is_empty() { Exit::Good } else { Exit::Finding },
        json: json!({"configuration": text, "notes": listed, "errors": errors}),
        good: text.lines().map(str::to_owned).collect(),
        bad,
    }
}
