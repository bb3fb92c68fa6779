//! Fuzzes the parsers: `fuzz [--seconds N] [--seed S] [--target config|manifests|names|query|all]`.
//!
//! Each target runs for these seconds. Exits with 1 on a finding and writes its input to the current folder.

use std::io::{Write, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use holdfast_fixtures::clock::Deadline;
use holdfast_tests::fuzz::{Length, TARGETS, feed, target};

struct Arguments {
    seconds: u64,
    seed: u64,
    target: String,
}

fn main() -> ExitCode {
    let mut out = stdout();
    match run(&mut out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let _ = writeln!(out, "{message}");
            ExitCode::FAILURE
        }
    }
}

fn run(out: &mut impl Write) -> Result<(), String> {
    let wanted = wanted(std::env::args().skip(1))?;
    let all = TARGETS.iter().map(|name| (*name).to_owned()).collect();
    let names: Vec<String> = if wanted.target == "all" { all } else { vec![wanted.target] };
    let mut found = Vec::new();
    for name in names {
        let mut target = target(&name)?;
        let length = Length::Until(Deadline::after(Duration::from_secs(wanted.seconds)));
        match feed(target.as_mut(), wanted.seed, length, Path::new(".")) {
            Ok(report) => {
                let line =
                    writeln!(out, "{name}: {} inputs, {} answers", report.inputs, report.answers.len());
                line.map_err(|error| error.to_string())?;
            }
            Err(finding) => found.push(finding),
        }
    }
    if found.is_empty() { Ok(()) } else { Err(found.join("\n")) }
}

fn wanted(mut arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut wanted = Arguments { seconds: 60, seed: 1, target: "all".to_owned() };
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{name} {value}: a whole number is legal"));
        match name.as_str() {
            "--seconds" => wanted.seconds = number()?,
            "--seed" => wanted.seed = number()?,
            "--target" => wanted.target = value,
            other => return Err(format!("{other}: legal are --seconds, --seed and --target")),
        }
    }
    Ok(wanted)
}
