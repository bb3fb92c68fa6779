//! Whether this daemon's own state allows trust in the other findings.
//!
//! Invariant: these checks read the daemon's own status. A source that is not configured is no fault.

use core::time::Duration;

use super::probes;
use crate::case::Case;
use crate::command::{Command, CommandWord};
use crate::evidence::WatchStatus;
use crate::finding::{Judgement, Remedy};
use crate::formatting::{format_duration, join_names};
use holdfast_core::snapshot::Status;
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::views::apiserver::{ApiserverState, ApiserverView, EndpointView, Tier};
use serde_json::json;

/// Silence of a watch that is a warning, and one that is an error. Bookmarks come about once a minute.
const SILENT_WARNING: Duration = Duration::from_secs(90);
const SILENT_ERROR: Duration = Duration::from_secs(300);

/// A watch with an error counts as interrupted after this silence. A watch that ends restarts within moments.
const INTERRUPTED_AFTER: Duration = Duration::from_secs(5);

/// The fill level at which to raise a map's limit. Maps grow by themselves up to it.
const FULL_PERCENT: u64 = 80;

fn journal_remedy() -> Remedy {
    let words = ["journalctl", "-u", "holdfast", "-n", "50"].map(CommandWord::Literal);
    Remedy::safe("Read the daemon's journal.").with_command(Command::from_words(&words))
}

fn restart_remedy() -> Remedy {
    let words = RESTART.map(CommandWord::Literal);
    Remedy::disruptive("Restart holdfast; connections that are open stay.")
        .with_command(Command::from_words(&words))
}

const RESTART: [&str; 3] = ["systemctl", "restart", "holdfast"];

pub(super) fn check_ready(case: &Case<'_>) -> Judgement {
    if let Some(stalled) = case.stalled_for() {
        let sentence =
            format!("The engine has not moved for {} s: changes do not reach clients.", stalled.as_secs());
        return Judgement::error(sentence).remedy(journal_remedy()).remedy(restart_remedy());
    }
    match (case.unready_reason(), case.table().stale_since) {
        (Some(why), _) => {
            Judgement::error(format!("The daemon is not ready: {why}.")).remedy(journal_remedy())
        }
        (None, Some(since)) => {
            let since = Rfc3339(since);
            Judgement::warning(format!(
                "This node serves what it remembered at {since}; a source has not delivered since."
            ))
            .remedy(Remedy::safe("See self.control for the path to the apiserver."))
        }
        (None, None) => Judgement::ok("Every source has delivered, and the maps follow the rules."),
    }
}

pub(super) fn check_watch(case: &Case<'_>) -> Judgement {
    let watches = &case.watches();
    let relevant = || watches.iter().filter(|it| matches!(it.what.as_str(), "services" | "endpointslices"));
    let silence = |it: &WatchStatus| it.silent.unwrap_or(Duration::MAX);
    let is_interrupted = |it: &WatchStatus| it.error.is_some() && silence(it) > INTERRUPTED_AFTER;
    let Some(worst) = relevant().max_by_key(|it| (is_interrupted(it), silence(it))) else {
        return Judgement::not_applicable("No apiserver is watched.");
    };
    let Some(silent) = worst.silent else {
        let why = worst.error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
        return Judgement::error(format!("The watch of {} has received nothing yet{why}.", worst.what))
            .remedy(Remedy::safe("See self.control for the path to the apiserver."));
    };
    let seconds = i64::try_from(silent.as_secs()).unwrap_or(i64::MAX);
    if is_interrupted(worst) {
        return judge_interrupted_watch(case, worst, silent).with("silent_seconds", seconds);
    }
    if silent <= SILENT_WARNING {
        return Judgement::ok("The watches of services and slices are alive.")
            .with("silent_seconds", seconds);
    }
    let sentence = format!(
        "The watch of {} has been silent for {}: what this node knows may be old.",
        worst.what,
        format_duration(seconds)
    );
    Judgement::error_if(silent > SILENT_ERROR, sentence).with("silent_seconds", seconds).remedy(
        Remedy::safe("See self.control for the path to the apiserver.").with_command(Command::from_words(&[
            CommandWord::Literal("holdfast"),
            CommandWord::Literal("apiserver"),
        ])),
    )
}

/// Judges a watch that keeps retrying. If any apiserver answers, the path to it is not at fault.
fn judge_interrupted_watch(case: &Case<'_>, worst: &WatchStatus, silent: Duration) -> Judgement {
    let seconds = i64::try_from(silent.as_secs()).unwrap_or(i64::MAX);
    let sentence = format!(
        "The watch of {} has been interrupted for {} ({}): news since then are missing here.",
        worst.what,
        format_duration(seconds),
        worst.error.as_deref().unwrap_or_default()
    );
    let answers = case.apiserver().as_deref().is_some_and(|view| healthy_endpoints(view).next().is_some());
    let shown = Command::from_words(&[CommandWord::Literal("holdfast"), CommandWord::Literal("apiserver")]);
    Judgement::error_if(silent > SILENT_ERROR, sentence).remedy(match answers {
        true => Remedy::safe(
            "If the error says that a right is missing, apply contrib/kubernetes/rbac.yaml again; else read the \
             apiserver's log.",
        )
        .with_command(shown),
        false => Remedy::safe("See self.control for the path to the apiserver.").with_command(shown),
    })
}

/// The endpoints that answered last, including those that recover or throttle.
fn healthy_endpoints(view: &ApiserverView) -> impl Iterator<Item = &EndpointView> {
    let answers = [ApiserverState::Healthy, ApiserverState::Recovering, ApiserverState::Throttled];
    view.endpoints.iter().filter(move |it| answers.contains(&it.state))
}

pub(super) fn check_control(case: &Case<'_>) -> Judgement {
    let Some(view) = case.apiserver().as_deref() else {
        return Judgement::not_applicable("No apiserver is configured.");
    };
    let healthy: Vec<&EndpointView> = healthy_endpoints(view).collect();
    let shown = Command::from_words(&[CommandWord::Literal("holdfast"), CommandWord::Literal("apiserver")]);
    // A list or a watch event is an answer, even if no probe has found an endpoint healthy yet.
    let least_silence = case.watches().iter().filter_map(|it| it.silent).min();
    let is_unproven = healthy.is_empty() && view.endpoints.iter().any(|it| it.last_error.is_none());
    if let (true, Some(silent)) = (is_unproven, least_silence.filter(|silent| *silent <= SILENT_WARNING)) {
        let ago = format_duration(i64::try_from(silent.as_secs()).unwrap_or(i64::MAX));
        let active = view.endpoints.iter().find(|it| it.active).map(|it| format!(" at {}", it.address));
        return Judgement::ok(format!("The apiserver{} answered {ago} ago.", active.unwrap_or_default()))
            .with("endpoints", list_addresses(view));
    }
    let Some(used) = healthy.iter().find(|it| it.active).or(healthy.first()) else {
        return Judgement::error(format!("No apiserver answers: {}.", join_errors(view)))
            .with("endpoints", list_addresses(view))
            .remedy(Remedy::safe(choose_path_advice(view)).with_command(readyz_command(view)));
    };
    let is_fallback =
        used.tier != Tier::Configured && view.endpoints.iter().any(|it| it.tier == Tier::Configured);
    if is_fallback {
        return Judgement::warning(format!(
            "A fallback is in use, {}, because: {}.",
            used.address,
            join_errors(view)
        ))
        .with("endpoints", list_addresses(view))
        .remedy(Remedy::safe("Mend the configured address, or its certificate.").with_command(shown));
    }
    Judgement::ok(format!("The apiserver at {} answers.", used.address))
}

/// The question to the first apiserver that needs nothing of holdfast.
fn readyz_command(view: &ApiserverView) -> Option<Command> {
    let first = view.endpoints.first()?.address;
    let curl = ["curl", "-k"].map(CommandWord::Literal);
    Command::from_words(&[&curl[..], &[CommandWord::Https(first, "/readyz")]].concat())
}

/// Where to look for why no apiserver answers. A refused connection has nothing to do with credentials.
fn choose_path_advice(view: &ApiserverView) -> &'static str {
    let is_refused = |it: &EndpointView| {
        it.last_error.as_ref().is_some_and(|(error, _)| error.to_string().contains("connection refused"))
    };
    if view.endpoints.iter().all(is_refused) {
        "Nothing listens there. Look on the machine that has the address whether kube-apiserver runs and on which port; \
         if it does, correct the address (`[apiserver] endpoints`). From here, to see when it is back:"
    } else {
        "Look at the path from this node to each address, and at its credentials (`holdfast apiserver`). From here:"
    }
}

fn list_addresses(view: &ApiserverView) -> Vec<String> {
    view.endpoints.iter().map(|it| it.address.to_string()).collect()
}

fn join_errors(view: &ApiserverView) -> String {
    let failed = view.endpoints.iter().filter(|it| it.state != ApiserverState::Healthy);
    let failed = failed.map(|it| match &it.last_error {
        Some((error, _)) => format!("{}: {error}", it.address),
        None => format!("{} was not reached yet", it.address),
    });
    join_names(failed)
}

/// Judges programs that serve without pins. They end with the daemon, so a restart interrupts service.
fn judge_unpinned_programs(places: &[&str], status: &holdfast_status::datapath::Status) -> Judgement {
    let named = join_names(places);
    let why = status.repair_failure.as_ref().map(|why| format!(" It is tried each second: {why}."));
    let mount = ["mount", "-t", "bpf", "bpf", "/sys/fs/bpf"].map(CommandWord::Literal);
    Judgement::warning(format!(
        "Programs serve at {named}, but their pins are gone, so they end with the daemon.{}",
        why.unwrap_or_default()
    ))
    .with("unpinned", json!(places))
    .remedy(
        Remedy::safe("See that the BPF file system is mounted on this host; pins return by themselves then.")
            .with_command(Command::from_words(&mount)),
    )
    .remedy(
        Remedy::disruptive(
            "If the file system is mounted, and its folder of pins was removed, restart holdfast: clients are not \
             served until it is back, and connections of clients outside end.",
        )
        .with_command(Command::from_words(&RESTART.map(CommandWord::Literal))),
    )
}

pub(super) fn check_hooks(case: &Case<'_>) -> Judgement {
    let Some(status) = case.datapath().status() else {
        return Judgement::info("Tables are in memory only: no program touches traffic.");
    };
    let cgroup = status.cgroup.as_ref().map_or_else(|| "no cgroup".to_owned(), |it| it.display().to_string());
    if status.waiting {
        return Judgement::error("Another version's programs still serve.").remedy(journal_remedy());
    }
    if !status.detached_hooks.is_empty() {
        let hooks = status.detached_hooks.join(", ");
        let what = format!("Programs are not attached to {cgroup}: {hooks}.");
        let judgement = match status.bare_redirects().is_empty() {
            true => Judgement::warning(format!("{what} Local clients are told the addresses of backends.")),
            false => Judgement::error(format!("{what} Local clients are not served.")),
        };
        return judgement
            .with("missing", json!(status.detached_hooks))
            .remedy(restart_remedy())
            .remedy(journal_remedy());
    }
    if !status.behind_hooks.is_empty() {
        let hooks = status.behind_hooks.join(", ");
        return Judgement::error(format!("Programs read maps that are no longer written: {hooks}."))
            .with("behind", json!(status.behind_hooks))
            .remedy(journal_remedy())
            .remedy(restart_remedy());
    }
    let ahead = join_earlier_programs(status);
    if !ahead.is_empty() && probes::is_intercepted(case) {
        return Judgement::error(format!(
            "Programs of others run before ours at {cgroup} ({ahead}), and connections to its frontends do not come \
             to its backends, though those answer: they are led elsewhere, or turned away."
        ))
        .likely()
        .with("shared", shared_hooks_json(status))
        .remedies(probes::foreign_program_remedies(status));
    }
    let unpinned = case.datapath().unpinned_hooks();
    if !unpinned.is_empty() {
        return judge_unpinned_programs(&unpinned, status);
    }
    let put_back = match status.hooks_restored {
        0 => String::new(),
        times => format!(" Detached programs were attached again {times} times since the start."),
    };
    let judgement = match (status.shared_hooks.is_empty(), ahead.is_empty()) {
        (true, _) => format!("Every program is attached to {cgroup}.{put_back}"),
        (false, true) => {
            format!("Every program is attached to {cgroup}; others have programs there too.{put_back}")
        }
        (false, false) => {
            format!(
                "Every program is attached to {cgroup}; those of others run before it ({ahead}).{put_back}"
            )
        }
    };
    let is_well = status.shared_hooks.is_empty() && status.hooks_restored == 0;
    let judgement = if is_well { Judgement::ok(judgement) } else { Judgement::info(judgement) };
    judgement.with("shared", shared_hooks_json(status)).with("put_back", status.hooks_restored)
}

/// Programs of others that see a connection before ours: `connect4: program 37`.
fn join_earlier_programs(status: &holdfast_status::datapath::Status) -> String {
    let before = status.shared_hooks.iter().filter(|it| !it.before.is_empty());
    join_names(before.map(|it| format!("{}: program {}", it.hook, join_names(&it.before))))
}

fn shared_hooks_json(status: &holdfast_status::datapath::Status) -> serde_json::Value {
    let one = |it: &holdfast_status::datapath::ForeignPrograms| json!({ "hook": it.hook, "before": it.before, "after": it.after });
    json!(status.shared_hooks.iter().map(one).collect::<Vec<_>>())
}

pub(super) fn check_maps(case: &Case<'_>) -> Judgement {
    let refused = case.frontends().filter_map(|it| match &it.status {
        Status::Error(error) => Some((it, error)),
        Status::Pending | Status::Done => None,
    });
    let refused: Vec<_> = refused.collect();
    if let Some((frontend, error)) = refused.first() {
        let count = refused.len();
        let address = std::net::SocketAddr::new(frontend.address, frontend.port.get());
        return Judgement::error(format!("The maps refused the last change of {address}: {error}."))
            .with("frontends", count)
            .with("error", &***error)
            .remedy(Remedy::safe(capacity_advice(error)))
            .remedy(restart_remedy());
    }
    let Some(status) = case.datapath().status() else {
        return Judgement::not_applicable("There are no maps in the kernel.");
    };
    let used: u64 = status.frontends.iter().map(|it| u64::from(*it)).sum();
    let room: u64 = status.limits.frontends.iter().map(|it| u64::from(*it)).sum();
    if room > 0 && used.saturating_mul(100) >= room.saturating_mul(FULL_PERCENT) {
        return Judgement::warning(format!("{used} of {room} frontends are in use."))
            .remedy(Remedy::safe("Raise `frontends` under [datapath.limits] before it is full."));
    }
    Judgement::ok("The maps took the last change, and have room.").with("frontends", used).with("room", room)
}

/// Advice for a refused op. The size of some maps is fixed.
fn capacity_advice(error: &str) -> &'static str {
    if error.contains("insert source") {
        return "Write fewer or wider ranges in loadBalancerSourceRanges, or have fewer ports in the Services that have them.";
    }
    "Raise the limit that the error names, under [datapath.limits] of the configuration."
}

pub(super) fn check_node(case: &Case<'_>) -> Judgement {
    let node = &case.table().node;
    if node.name.is_empty() {
        return Judgement::error("This node's name is not known: no endpoint counts as local.")
            .remedy(Remedy::safe("Set the node's name in the configuration, as kubelet registered it."));
    }
    let has_hints = case.endpoints().values().any(|it| it.hints.is_some_and(|hints| !hints.zones.is_empty()));
    if has_hints && node.zone.is_none() {
        return Judgement::warning(format!("Endpoints have hints, and node {} has no zone.", node.name))
            .remedy(Remedy::safe("Label the node with topology.kubernetes.io/zone."));
    }
    match case.watches().iter().find_map(|watch| watch.zone_problem.as_deref()) {
        Some(problem) => Judgement::info(format!("This is node {}: {problem}.", node.name)),
        None => Judgement::ok(format!("This is node {}.", node.name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_source_map_advises_wider_ranges_not_a_limit() {
        let refused =
            "cannot insert source: all are taken; 65536 of a family fit, each counted once for each port";
        assert!(capacity_advice(refused).contains("wider ranges"));
        assert!(
            capacity_advice("the map is full; raise `datapath.limits.frontends`")
                .contains("[datapath.limits]")
        );
    }
}
