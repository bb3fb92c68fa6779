//! Scenarios: one text file is specification, test and documentation of one rule.
//!
//! A file begins with a paragraph that states the rule. Steps follow: a word at the left margin, its text indented by
//! two spaces. `show` steps contain the expected output; `BLESS=1` rewrites them. Invariant: a step changes only the
//! world outside the daemon, and a dump shows only what readers and clients see. So every scenario holds over all maps,
//! with failing maps, and with a restart between any two steps. Time passes only in a `time` step.
//!
//! | step | what happens |
//! |---|---|
//! | `file NAME` + YAML or JSON | writes or replaces a manifest in the folder |
//! | `remove NAME` | removes it |
//! | `cluster` + YAML | an apiserver sends these objects, new or changed, as one group |
//! | `cluster delete KIND NAMESPACE/NAME` | the apiserver sends a deletion |
//! | `config` + TOML | sets the configuration's `[[service]]` blocks |
//! | `node name=N zone=Z addresses=A,B` | the own node; `addresses` answer NodePorts |
//! | `settings bypass=A:P,… proxy_name=N frontends_max=N external_ips=none\|FIRST-LAST,…` | the settings |
//! | `settings maglev=true` | the setting of Maglev |
//! | `settings on_empty=W limit=30s` | the settings of holds; `refuse` by default |
//! | `settings mass_loss_share=25% mass_loss_window=30s mass_loss_limit=600s` | the settings of mass losses |
//! | `drain A[:P] [of NAMESPACE/NAME]`, `undrain …` | an operator drains backends, or ends that |
//! | `probe NAMESPACE/NAME A:P accepted`, `refused`, `silent` | a held backend is probed |
//! | `interrupted` | every source may miss something for a while |
//! | `time +5s` | five seconds pass |
//! | `restart` | the daemon restarts on the same maps, with its saved state |
//! | `show frontends`, `backends`, `services`, `balancers`, `rejected`, `maps` | the expected output |
//! | `keep running: REASON` | this scenario has no meaning with a restart at every step |

mod clients;
mod daemon;
mod diff;
mod maps;
mod outside;
mod runner;
mod show;
mod table;
mod text;

pub use daemon::{Daemon, RulesAlone};
pub use diff::difference;
pub use runner::{FaultyMemory, MapMaker, Memory, Runner};
pub use show::{View, frontends};
pub use text::{Command, Scenario, ScenarioError, Step};

use std::path::Path;

/// Whether the daemon restarts between every two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restarts {
    /// Only where a step says so.
    AsWritten,
    /// Between every two steps.
    BetweenSteps,
}

/// Runs a scenario and returns each `show` step's output. At the end everything is deleted, and nothing may be left.
pub fn play(
    scenario: &Scenario,
    daemon: &dyn Daemon,
    maker: &dyn MapMaker,
    restarts: Restarts,
) -> Result<Vec<String>, ScenarioError> {
    let mut runner = Runner::start(daemon, maker, scenario.sources())?;
    let mut seen = Vec::new();
    for step in scenario.steps() {
        let at = |message| ScenarioError { line: step.line, message };
        if let Command::Show(view) = &step.command {
            seen.push(runner.show(*view).map_err(at)?);
        } else {
            runner.take(&step.command).map_err(at)?;
            if restarts == Restarts::BetweenSteps {
                runner.take(&Command::Restart).map_err(at)?;
            }
        }
    }
    runner.clear().map_err(|message| ScenarioError { line: 0, message })?;
    Ok(seen)
}

/// Runs a file over every kind of maps, with and without restarts, and compares. `Err` is the text to print.
pub fn check(path: &Path, daemon: &dyn Daemon, makers: &[&dyn MapMaker], bless: bool) -> Result<(), String> {
    let named = |message: &dyn std::fmt::Display| format!("{}: {message}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
    let mut scenario = Scenario::parse(&text).map_err(|error| named(&error))?;
    let mut golden = scenario.golden();
    for (place, maker) in makers.iter().enumerate() {
        for restarts in scenario.plays() {
            let failed = |what: &dyn std::fmt::Display| {
                format!("{} over {} maps, restarts {restarts:?}:\n{what}", path.display(), maker.name())
            };
            let seen = play(&scenario, daemon, *maker, restarts).map_err(|error| failed(&error))?;
            if bless && place == 0 && restarts == Restarts::AsWritten && seen != golden {
                scenario = scenario.blessed(&seen);
                golden = seen;
                std::fs::write(path, scenario.text()).map_err(|error| named(&error))?;
            } else if seen != golden {
                return Err(failed(&difference(&golden.concat(), &seen.concat())));
            }
        }
    }
    Ok(())
}
