//! Parses the text of a scenario into steps, and writes it back.
//!
//! Invariant: everything except the golden text of `show` steps is written back byte for byte.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use holdfast_core::address_policy::{AddressRange, ExternalIps};
use holdfast_core::drains::Drain;
use holdfast_core::facts::{NodeFacts, Settings};
use holdfast_core::hold::{OnEmpty, Policy, ProbeAnswer};
use holdfast_core::keys::{ObjectName, Source};
use holdfast_core::str_enum::StrEnum;

use super::{Restarts, View};

/// A fault of a scenario, or a failed expectation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ScenarioError {
    /// Counted from 1; 0: the end.
    pub line: usize,
    pub message: String,
}

/// What happens outside the daemon, or what to show.
#[derive(Clone, Debug)]
pub enum Command {
    /// A manifest has this text now.
    File(String, String),
    /// A manifest is deleted.
    Remove(String),
    /// An apiserver sends objects.
    Cluster(String),
    /// An apiserver sends a deletion: kind, then namespace and name.
    ClusterDelete(String, String),
    Config(String),
    /// The own node.
    Node(NodeFacts),
    Settings(Settings),
    /// An operator drains backends, or ends that.
    Drain(Drain, bool),
    /// A backend of a held list is probed: service, backend, answer.
    Probe(String, SocketAddr, ProbeAnswer),
    /// Every source may miss something.
    Interrupted,
    Time(Duration),
    /// The daemon restarts.
    Restart,
    Show(View),
    /// The scenario would be another one with a restart at every step.
    KeepRunning,
}

#[derive(Clone, Debug)]
pub struct Step {
    /// Its first line, counted from 1.
    pub line: usize,
    pub command: Command,
    // The lines of its block.
    block: Range<usize>,
}

/// One scenario file.
#[derive(Clone, Debug)]
pub struct Scenario {
    lines: Vec<String>,
    steps: Vec<Step>,
}

impl Scenario {
    /// Parses a file's text.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if !text.starts_with("# ") {
            let message = "a scenario begins with a paragraph that states the rule: `# …`".to_owned();
            return Err(ScenarioError { line: 1, message });
        }
        let mut steps: Vec<Step> = Vec::new();
        for (place, line) in lines.iter().enumerate() {
            if line.is_empty()
                || line.starts_with('#')
                || steps.last().is_some_and(|step| place < step.block.end)
            {
                continue;
            }
            let block = place + 1..block_end(&lines, place + 1);
            let command = command(line, &block_text(&lines, &block))
                .map_err(|message| ScenarioError { line: place + 1, message })?;
            steps.push(Step { line: place + 1, command, block });
        }
        Ok(Self { lines, steps })
    }

    /// All steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The sources of this scenario; a start waits for all of them.
    pub fn sources(&self) -> BTreeSet<Source> {
        let source = |step: &Step| match step.command {
            Command::File(..) | Command::Remove(_) => Some(Source::Manifests),
            Command::Cluster(_) | Command::ClusterDelete(..) => Some(Source::Kubernetes),
            Command::Config(_) => Some(Source::Config),
            _ => None,
        };
        self.steps.iter().filter_map(source).collect()
    }

    /// The ways to run it.
    pub fn plays(&self) -> Vec<Restarts> {
        match self.steps.iter().any(|step| matches!(step.command, Command::KeepRunning)) {
            true => vec![Restarts::AsWritten],
            false => vec![Restarts::AsWritten, Restarts::BetweenSteps],
        }
    }

    /// The expected output of each `show` step.
    pub fn golden(&self) -> Vec<String> {
        self.shows().map(|step| block_text(&self.lines, &step.block)).collect()
    }

    /// The same scenario with `seen` as its golden text.
    #[must_use]
    pub fn blessed(&self, seen: &[String]) -> Self {
        let mut lines = Vec::new();
        let mut from = 0;
        for (step, dump) in self.shows().zip(seen) {
            lines.extend(self.lines.get(from..step.block.start).unwrap_or_default().iter().cloned());
            lines.extend(dump.lines().map(|line| format!("  {line}").trim_end().to_owned()));
            from = step.block.end;
        }
        lines.extend(self.lines.get(from..).unwrap_or_default().iter().cloned());
        let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        Self::parse(&text).unwrap_or_else(|_| self.clone())
    }

    /// The file's text.
    pub fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }

    fn shows(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| matches!(step.command, Command::Show(_)))
    }
}

/// Indented lines, and empty ones between them.
fn block_end(lines: &[String], start: usize) -> usize {
    let rest = lines.iter().enumerate().skip(start);
    let within = rest.take_while(|(_, line)| line.is_empty() || line.starts_with("  "));
    within.filter(|(_, line)| !line.is_empty()).last().map_or(start, |(place, _)| place + 1)
}

fn block_text(lines: &[String], block: &Range<usize>) -> String {
    let lines = lines.get(block.clone()).unwrap_or_default();
    lines.iter().map(|line| format!("{}\n", line.strip_prefix("  ").unwrap_or(line))).collect()
}

fn command(line: &str, block: &str) -> Result<Command, String> {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let block = || block.to_owned();
    Ok(match (word, rest) {
        ("file", name) if !name.is_empty() => Command::File(name.to_owned(), block()),
        ("remove", name) if !name.is_empty() => Command::Remove(name.to_owned()),
        ("cluster", "") => Command::Cluster(block()),
        ("cluster", rest) => deletion(rest)?,
        ("config", "") => Command::Config(block()),
        ("node", rest) => Command::Node(node(rest)?),
        ("settings", rest) => Command::Settings(settings(rest)?),
        ("drain", rest) => Command::Drain(drain(rest)?, true),
        ("undrain", rest) => Command::Drain(drain(rest)?, false),
        ("probe", rest) => probe(rest)?,
        ("interrupted", "") => Command::Interrupted,
        ("time", rest) => Command::Time(duration(rest)?),
        ("restart", "") => Command::Restart,
        ("show", view) => Command::Show(View::parse(view)?),
        ("keep", why) if why.starts_with("running: ") => Command::KeepRunning,
        _ => return Err(format!("{line:?} is no step")),
    })
}

fn deletion(rest: &str) -> Result<Command, String> {
    let mut words = rest.split(' ');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some("delete"), Some(kind), Some(name), None) => {
            Ok(Command::ClusterDelete(kind.to_owned(), name.to_owned()))
        }
        _ => Err(format!("`cluster delete KIND NAMESPACE/NAME`, not {rest:?}")),
    }
}

fn node(rest: &str) -> Result<NodeFacts, String> {
    let mut node = NodeFacts::default();
    for (key, value) in pairs(rest)? {
        match key {
            "name" => node.name = value.into(),
            "zone" => node.zone = Some(value.into()),
            "addresses" => node.node_port_addresses = list::<IpAddr>(value)?.into_iter().collect(),
            other => return Err(format!("a node has no {other:?}")),
        }
    }
    Ok(node)
}

/// The initial settings: kube-proxy's rules, which refuse at once. Scenarios with holds set their own.
pub(super) fn stage_settings() -> Settings {
    let hold = Policy { on_empty: OnEmpty::Refuse, ..Policy::default() };
    Settings { hold, ..Settings::default() }
}

/// `none`, or ranges such as `192.0.2.1-192.0.2.9`.
fn external_ips(value: &str) -> Result<ExternalIps, String> {
    if value == "none" {
        return Ok(ExternalIps::None);
    }
    let range = |text: &str| {
        let (first, last) = text.split_once('-').ok_or_else(|| format!("{text:?} is no range FIRST-LAST"))?;
        let address = |text: &str| text.parse().map_err(|error| format!("{text:?}: {error}"));
        Ok(AddressRange { first: address(first)?, last: address(last)? })
    };
    value.split(',').map(range).collect::<Result<_, String>>().map(ExternalIps::Within)
}

fn settings(rest: &str) -> Result<Settings, String> {
    let mut settings = stage_settings();
    for (key, value) in pairs(rest)? {
        match key {
            "on_empty" => settings.hold.on_empty = on_empty(value)?,
            "limit" => settings.hold.limit = seconds(value)?,
            "mass_loss_share" => settings.hold.mass_loss_share = percent(value)?,
            "mass_loss_window" => settings.hold.mass_loss_window = seconds(value)?,
            "mass_loss_limit" => settings.hold.mass_loss_limit = seconds(value)?,
            "bypass" => settings.bypass = list::<SocketAddr>(value)?.into_iter().collect(),
            "frontends_max" => settings.frontends_max = Some(number(value)?),
            "external_ips" => settings.external_ips = external_ips(value)?,
            "proxy_name" => settings.service_proxy_name = Some(value.into()),
            "packets" => settings.serves_sctp = is_translated(value)?,
            "maglev" => settings.maglev = value.parse().map_err(|_| format!("{value:?} is no maglev"))?,
            other => return Err(format!("there is no setting {other:?}")),
        }
    }
    Ok(settings)
}

fn is_translated(word: &str) -> Result<bool, String> {
    match word {
        "translated" => Ok(true),
        "left-alone" => Ok(false),
        _ => Err(format!("`translated` or `left-alone`, not {word:?}")),
    }
}

fn on_empty(word: &str) -> Result<OnEmpty, String> {
    OnEmpty::from_spelling(word).ok_or_else(|| format!("{word:?} is no on_empty"))
}

fn seconds(text: &str) -> Result<i64, String> {
    let seconds = text.strip_suffix('s').and_then(|seconds| seconds.parse().ok());
    seconds.ok_or_else(|| format!("`30s`, not {text:?}"))
}

/// Parses a percentage into millionths.
fn percent(text: &str) -> Result<u32, String> {
    let percent = text.strip_suffix('%').and_then(|percent| percent.parse::<u32>().ok());
    percent.map(|percent| percent * 10_000).ok_or_else(|| format!("`25%`, not {text:?}"))
}

fn drain(rest: &str) -> Result<Drain, String> {
    let legal = || format!("`drain ADDRESS[:PORT] [of NAMESPACE/NAME]`, not {rest:?}");
    let (backend, service) = rest.split_once(" of ").map_or((rest, None), |(it, of)| (it, Some(of)));
    let name = |text: &str| {
        let (namespace, name) = text.split_once('/').ok_or_else(legal)?;
        ObjectName::new(namespace, name).map_err(|error| error.to_string())
    };
    let service = service.map(name).transpose()?;
    let alone = |_| backend.parse::<IpAddr>().map(|address| Drain::new(address, None, service.clone()));
    let with_port = backend.parse::<SocketAddr>();
    with_port
        .map(|it| Drain::new(it.ip(), it.port().try_into().ok(), service.clone()))
        .or_else(alone)
        .map_err(|_| legal())
}

fn probe(rest: &str) -> Result<Command, String> {
    let legal = || format!("`probe NAMESPACE/NAME ADDRESS:PORT accepted|refused|silent`, not {rest:?}");
    let [service, backend, answer] = rest.split(' ').collect::<Vec<_>>().try_into().map_err(|_| legal())?;
    let answer = match answer {
        "accepted" => ProbeAnswer::Accepted,
        "refused" => ProbeAnswer::Refused,
        "silent" => ProbeAnswer::Silent,
        _ => return Err(legal()),
    };
    Ok(Command::Probe(service.to_owned(), backend.parse().map_err(|_| legal())?, answer))
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

fn pairs(rest: &str) -> Result<Vec<(&str, &str)>, String> {
    let pair = |word: &'_ str| word.split_once('=').map(|_| ()).ok_or_else(|| format!("{word:?} has no `=`"));
    rest.split_whitespace().try_for_each(pair)?;
    Ok(rest.split_whitespace().filter_map(|word| word.split_once('=')).collect())
}

fn list<T: std::str::FromStr>(value: &str) -> Result<Vec<T>, String> {
    let one = |text: &str| text.parse().map_err(|_| format!("{text:?} is no address"));
    value.split(',').filter(|text| !text.is_empty()).map(one).collect()
}

fn duration(rest: &str) -> Result<Duration, String> {
    let seconds = rest.strip_prefix('+').and_then(|rest| rest.strip_suffix('s'));
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    seconds.map(Duration::from_secs).ok_or_else(|| format!("`time +5s`, not {rest:?}"))
}
