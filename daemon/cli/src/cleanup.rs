//! `cleanup`: removes everything from the kernel that a daemon left there.
//!
//! Invariant: routes to announced addresses go once it is certain that no daemon runs; with `--drain` before anything
//! else, so that routers send nothing more. Programs go before maps, so no client meets programs without maps; with
//! `--drain` they go once clients outside have no flows left. A running daemon keeps everything: its lock on the pins
//! shows it, and the lock on its state where the pins are out of sight. The command does not ask the daemon, because it
//! makes sense only while that does not run.

use std::fmt::Display;
use std::path::Path;

use holdfast_datapath::{ConntrackOutcome, DrainReport};
use serde_json::{Value, json};

use super::report::Report;
use super::{CONFIG_PATH, Exit};
use holdfast_agent::host_routes;
use holdfast_agent::state::StateFolder;
use holdfast_config::{Config, ConfigErrors};

/// Reports what was removed, or the obstacle.
pub(super) fn cleanup(config: Option<&Path>, drains: bool) -> Report {
    let config = match load_config(config) {
        Ok(config) => config,
        Err(errors) => {
            let texts: Vec<String> = errors.errors.iter().map(ToString::to_string).collect();
            let json = json!({
                "pins": null, "found": null, "removed": false, "flows": 0, "ports_taken": 0, "routes": 0,
                "errors": texts,
            });
            return Report {
                exit: Exit::Config,
                json,
                good: Vec::new(),
                bad: vec![format!("holdfast: {errors}")],
            };
        }
    };
    let pins = config.datapath.bpffs;
    // Held until all is done, so that no daemon starts meanwhile.
    let _claim = match StateFolder::new(&config.state.path).claim_existing() {
        Ok(claim) => claim,
        Err(taken) => return build_report(&pins, true, &[taken]),
    };
    match if drains { holdfast_datapath::drain(&pins) } else { Ok(DrainReport::default()) } {
        Ok(DrainReport { flows: 0, .. }) => remove(&pins),
        Ok(drained) => add_routes(report_remaining_flows(&pins, &drained), take_routes()),
        Err(error) => build_report(&pins, true, &[error]),
    }
}

/// Filters at devices and routes have no pins, and are removed even without any.
fn remove(pins: &Path) -> Report {
    match holdfast_datapath::cleanup(pins) {
        Ok(removed) => {
            let routes = take_routes();
            let found = removed.has_any() || routes != Routes::default();
            add_routes(build_report(pins, found, &removed.errors), routes)
        }
        Err(error) => build_report(pins, true, &[error]),
    }
}

/// How many routes to announced addresses were removed, and why others stay.
type Routes = (usize, Vec<String>);

fn take_routes() -> Routes {
    host_routes::remove_all()
        .unwrap_or_else(|error| (0, vec![format!("routes to announced addresses cannot be listed: {error}")]))
}

/// Adds the result for the routes to announced addresses to a report.
fn add_routes(mut report: Report, (taken, errors): Routes) -> Report {
    if taken > 0 {
        report.good.push(format!("{taken} routes to announced addresses removed"));
    }
    if !errors.is_empty() {
        report.exit = Exit::Finding;
    }
    if let Some(json) = report.json.as_object_mut() {
        json.insert("routes".to_owned(), taken.into());
        json.get_mut("errors").and_then(Value::as_array_mut).into_iter().for_each(|all| {
            all.extend(errors.iter().cloned().map(Value::from));
        });
    }
    report.bad.extend(errors.iter().map(|error| format!("holdfast: {error}")));
    report
}

/// The report while clients' flows remain: no failure, but not the requested result either.
fn report_remaining_flows(pins: &Path, DrainReport { flows, ports }: &DrainReport) -> Report {
    let pins = pins.display().to_string();
    let free = describe_free_ports(ports);
    let remaining = format!(
        "{pins}: {flows} flows of clients outside go on, and no new ones begin; processes of this node are no longer \
         served. Run this again until all is removed"
    );
    let json = json!({
        "pins": pins, "found": true, "removed": false, "flows": flows, "ports_taken": ports.entered, "routes": 0,
        "errors": free.iter().collect::<Vec<_>>(),
    });
    let bad = free.iter().map(|free| format!("holdfast: {free}")).collect();
    Report { exit: Exit::Finding, json, good: vec![remaining], bad }
}

/// What to do about ports that another program of this node may give to its own clients.
fn describe_free_ports(ports: &ConntrackOutcome) -> Option<String> {
    let error = ports.error.as_ref()?;
    Some(format!(
        "conntrack has no entry for {} of these flows ({error}), so another program that masquerades here may give \
         their port to a client of its own, which then gets no replies. Check that nf_conntrack_netlink is loaded and \
         that the table is large enough (net.netfilter.nf_conntrack_max), and run this again",
        ports.refused
    ))
}

fn build_report(pins: &Path, found: bool, errors: &[impl Display]) -> Report {
    let is_good = errors.is_empty();
    let good = if found { "removed; no connection is translated any more" } else { "nothing is there" };
    let pins = pins.display().to_string();
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Report {
        exit: if is_good { Exit::Good } else { Exit::Finding },
        json: json!({
            "pins": pins, "found": found, "removed": found && is_good, "flows": 0, "ports_taken": 0, "routes": 0,
            "errors": texts,
        }),
        good: if is_good { vec![format!("{pins}: {good}")] } else { Vec::new() },
        bad: texts.iter().map(|error| format!("holdfast: {error}")).collect(),
    }
}

/// The configuration. A missing file in the usual place is no error: the package may be gone already.
pub(super) fn load_config(config: Option<&Path>) -> Result<Config, ConfigErrors> {
    let usual = Path::new(CONFIG_PATH);
    match config.or_else(|| usual.exists().then_some(usual)) {
        Some(path) => Config::load(path).map(|(config, _)| config),
        None => Ok(Config::default()),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn report(ports: ConntrackOutcome) -> Report {
        report_remaining_flows(Path::new("/sys/fs/bpf/holdfast"), &DrainReport { flows: 7, ports })
    }

    #[test]
    fn a_removed_route_alone_counts_as_removed() {
        let pins = Path::new("/sys/fs/bpf/holdfast");
        let report = add_routes(build_report(pins, true, &[] as &[String]), (2, Vec::new()));
        let said =
            ["removed; no connection is translated any more", "2 routes to announced addresses removed"];
        assert!(report.good.iter().zip(said).all(|(line, said)| line.ends_with(said)), "{:?}", report.good);
        assert_eq!((&report.json["found"], &report.json["removed"]), (&true.into(), &true.into()));
    }

    #[test]
    fn remaining_flows_and_their_ports_are_counted() {
        let report = report(ConntrackOutcome { entered: 3, ..ConntrackOutcome::default() });
        assert_eq!(report.exit, Exit::Finding);
        assert!(report.good[0].starts_with("/sys/fs/bpf/holdfast: 7 flows of clients outside go on"));
        assert_eq!((report.good.len(), report.bad.len()), (1, 0));
        assert_eq!((&report.json["flows"], &report.json["ports_taken"]), (&7.into(), &3.into()));
        assert_eq!(report.json["errors"], json!([]));
    }

    #[test]
    fn ports_at_risk_are_reported_with_advice() {
        let error = Some(io::Error::from_raw_os_error(nix::libc::ENOMEM));
        let report = report(ConntrackOutcome { entered: 1, refused: 2, error });
        assert_eq!((report.exit, report.good.len()), (Exit::Finding, 1), "they go on all the same");
        let said = &report.bad[0];
        assert!(
            said.starts_with("holdfast: conntrack has no entry for 2 of these flows (Cannot allocate memory"),
            "{said}"
        );
        assert!(said.contains("nf_conntrack_max") && said.ends_with("run this again"), "{said}");
        assert_eq!(report.json["errors"][0], said["holdfast: ".len()..]);
    }
}
