//! Runs the same test programs in every kernel, and prints one line for each kernel.
//!
//! Invariant: all kernels run, whatever fails in one of them, and failures are shown.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use holdfast_fixtures::clock::Deadline;
use holdfast_tests::bed::BedError;
use holdfast_tests::bed::clients::Client;

use crate::architecture::Architecture;
use crate::failure::{Failure, described};
use crate::guest::{Errand, inside, mark};
use crate::machine::{self, Build};
use crate::observed;
use crate::store::Store;
use crate::tally::{PROGRAM, Tally};

/// Kernels that run one after another; two such rows run at the same time, which keeps two CPUs busy.
const IN_A_ROW: usize = 2;

/// Some more than the tests take in the slowest kernel. CI's limit of the part is a minute longer, so that the
/// kernel's output is shown.
const DEADLINE: Duration = Duration::from_secs(1_640);

/// Enough for the first file system and thousands of frontends.
const MEMORY_MIB: u32 = 1024;

/// Random cases of a property: other kernels only need to behave alike.
const CASES: u32 = 3;

/// Only tests of the kernel's side need another kernel.
const FILTER: &str = "kernel_";

/// Tests that attach programs to devices with `tc`, which no guest has. Other tests run the programs themselves in
/// each kernel.
const AT_DEVICES: &str = "kernel::packets::tests";

/// Whether the kernel blinds constants in programs.
const JIT_HARDEN: &str = "/proc/sys/net/core/bpf_jit_harden";

/// The tests that load programs anew each, without blinded constants: to blind them takes Linux 7.3, emulated, ten
/// seconds for each test. Other tests load the same programs blinded.
const RELOADING: &str = "holdfast_datapath";

/// Skipped tests: scenarios are files, which no guest has; kernels differ in the errno for a process that may not end
/// pods' sockets; the daemon's checks and DNS are the same everywhere, and timed in tenths of a second, which emulation
/// does not keep; and diagnoses of faults look at the whole host, which has no resolv.conf there.
const OF_THIS_MACHINE: [&str; 5] =
    ["scenarios::kernel_", "stale::kernel_", "checks::kernel_", "names::kernel_", "diagnosed_faults::"];

/// Packet rules, and a socket's choice of backend, are the same in each kernel that loads the programs. They run in
/// this machine's kernel and, separately, in the oldest one: an emulated processor verifies the programs again for
/// each of them, for five seconds. Each share takes less than ten minutes.
const RULES: [&[&str]; 3] = [
    &[
        "packets::tests::anew",
        "packets::tests::answers",
        "packets::tests::associations",
        "packets::tests::early",
        "packets::tests::errors",
        "packets::tests::flows",
    ],
    &[
        "packets::tests::fuzz",
        "packets::tests::hard",
        "packets::tests::joined",
        "packets::tests::lives",
        "packets::tests::loops",
        "packets::tests::near",
    ],
    &[
        "conversations::kernel_a_connected_client_keeps_only_a_serving_backend",
        "packets::tests::networks",
        "packets::tests::one_sided",
        "packets::tests::ports",
        "packets::tests::room",
        "packets::tests::snat",
        "packets::tests::sticky",
        "pinned_programs::kernel_",
    ],
];

/// Rules that need tens of thousands of packets, which take an emulated processor up to two minutes for each test.
/// They run in this machine's kernel.
const RULES_OF_MANY: [&str; 4] = [
    "no_client_comes_by_a_port_that_is_a_frontend_at_its_address",
    "no_flood_of_one_service_moves_clients_of_another",
    "fifty_thousand_connections_to_one_backend_are_all_carried",
    "programs_and_daemon_give_up_the_same_flow",
];

/// What a kernel of another architecture might do in a way of its own: verify and translate a program, call it from a
/// hook, and lay out a format that programs and daemon share. Each of these has a test, and so has each row of the
/// page. All else is code that does not depend on the architecture, and such a processor is emulated at half the speed.
const OF_AN_ARCHITECTURE: [&str; 25] = [
    // What its compiler makes of the programs.
    "skeleton::tests::",
    // All programs at devices, with what the verifier looks at, and all programs of sockets.
    "verified::kernel_",
    "load::tests::kernel_",
    "life::kernel_the_self_test_proves_translation_and_exemption",
    "life::kernel_programs_and_daemon_compute_the_same_address_blocks",
    // The hooks of sockets; each test has both families.
    "sockets::kernel_tcp_connects_to_a_backend_and_shows_what_was_dialled",
    "sockets::kernel_an_empty_list_refuses_and_a_dropping_one_times_out",
    "sockets::kernel_one_udp_socket_distinguishes_two_vips",
    "sockets::kernel_udp_shows_the_vip_as_the_source",
    "sockets::kernel_a_refusal_names_the_process_and_the_frontend",
    "sockets::invariant_11_kernel_",
    // What comes by a device, leaves by one, is answered by pods, and is taken at the driver.
    "maglev::kernel_a_client_gets_the_backend_that_every_node_computes",
    "inside::kernel_pods_reach_each_other_on_the_fast_path_both_ways",
    "wrapped::kernel_decapsulated_packets_show_the_client_and_replies_the_frontend",
    "frames::kernel_the_driver_redirects_frames_as_the_tc_program_would",
    // Shared formats.
    "maps::kernel_maps_hold_what_memory_maps_hold",
    "table::tests::kernel_",
    "found::kernel_a_flow_is_reported_with_all_its_fields",
    "programs::kernel_flows_of_programs_are_read_whole_and_swept_completely",
    "sources::tests::kernel_sources_are_read_back_as_they_were_written",
    "drift::kernel_foreign_map_changes_are_reported_and_repaired",
    "facts::kernel_",
    // Each call of a client, and the rest of what the page shows.
    "kernel_c_client_",
    "denied::kernel_a_refused_curl_is_recorded_with_its_dialled_address",
    "served::kernel_a_long_lived_udp_client_moves_when_its_backend_leaves",
];

/// The files in each guest, and the skipped tests.
#[derive(Debug)]
struct Payload<'a> {
    architecture: Architecture,
    programs: &'a [PathBuf],
    beside: Vec<PathBuf>,
    /// Tests whose client cannot be built here, and what that needs.
    absent: Option<(&'static str, &'static str)>,
}

/// Runs these shares of the packet rules in the oldest kernel, or all; whether all passed. They observe nothing for
/// the page.
pub(crate) fn rules(store: &Store, shares: &[usize], programs: &[PathBuf]) -> Result<bool, Failure> {
    let payload = Payload::prepare(store, programs)?;
    let Some(oldest) = store.architecture().series().first() else { return Ok(false) };
    if let Some(unknown) = shares.iter().find(|share| !(1..=RULES.len()).contains(share)) {
        say(&format!("rules: 0 passed, 1 failed: there is no share {unknown} of {}", RULES.len()));
        return Ok(false);
    }
    let is_chosen = |share: usize| shares.is_empty() || shares.contains(&share);
    let chosen = (1..).zip(RULES).filter(|(share, _)| is_chosen(*share));
    let failed: u32 =
        chosen.map(|(_, rules)| in_kernel(store, oldest, &payload, &payload.rules(rules)).failed()).sum();
    Ok(failed == 0)
}

/// Runs the programs' tests in these kernels, or in all; whether all passed and the page shows the observations.
pub(crate) fn run(
    store: &Store,
    page: &Path,
    kernels: &[String],
    programs: &[PathBuf],
) -> Result<bool, Failure> {
    let payload = &Payload::prepare(store, programs)?;
    let all = store.architecture().series().to_vec();
    let chosen: Vec<&str> =
        if kernels.is_empty() { all } else { kernels.iter().map(String::as_str).collect() };
    let row = |row: &[&str]| -> Vec<(String, Tally)> {
        let script = payload.script();
        row.iter().map(|series| ((*series).to_owned(), in_kernel(store, series, payload, &script))).collect()
    };
    let tallies: Vec<(String, Tally)> = thread::scope(|scope| {
        let rows: Vec<_> = chosen.chunks(IN_A_ROW).map(|series| scope.spawn(move || row(series))).collect();
        let ended = rows.into_iter().map(|row| row.join().unwrap_or_else(|it| std::panic::resume_unwind(it)));
        ended.flatten().collect()
    });
    let passed = tallies.iter().all(|(_, tally)| tally.failed() == 0);
    let columns: Vec<_> = tallies
        .iter()
        .map(|(series, it)| (heading(store.architecture(), series), it.observed().to_vec()))
        .collect();
    Ok(page_agrees(page, &columns)? && passed)
}

/// The heading of a column: `5.10`, `7.x` for a whole major version, `6.1 arm64`.
fn heading(architecture: Architecture, series: &str) -> String {
    let series = if series.contains('.') { series.to_owned() } else { format!("{series}.x") };
    if architecture.is_own() { series } else { format!("{series} {}", architecture.debian()) }
}

fn page_agrees(page: &Path, columns: &[(String, observed::Column)]) -> Result<bool, Failure> {
    let agrees = observed::agrees(page, columns)?;
    let page = page.display();
    if agrees {
        say(&format!("kernel table: 1 passed, 0 failed: {page} shows what was observed"));
    } else {
        say(&format!("kernel table: 0 passed, 1 failed: {page} does not show what was observed:"));
        say(&observed::table(columns));
        say("If that is meant: make matrix BLESS=1, then read the diff.");
    }
    Ok(agrees)
}

impl<'a> Payload<'a> {
    fn prepare(store: &Store, programs: &'a [PathBuf]) -> Result<Self, Failure> {
        let architecture = store.architecture();
        if !architecture.is_own() {
            // Its selection starts these alone.
            let beside = ["bed_child", "client"].map(|name| store.program(name)).to_vec();
            return Ok(Self { architecture, programs, beside, absent: None });
        }
        let (c, go) = clients()?;
        let absent = go.is_none().then_some(("go_client", "go"));
        let built = ["bed_child", "holdfast"].map(|name| store.program(name));
        let beside = built.into_iter().chain([c]).chain(go).collect();
        Ok(Self { architecture, programs, beside, absent })
    }

    fn errand(&self, script: &str) -> Errand<'_> {
        let programs = self.beside.iter().chain(self.programs).map(PathBuf::as_path).collect();
        Errand { script: script.to_owned(), programs, mark: mark() }
    }

    /// The names of tests that have to be there.
    fn required(&self) -> &'static [&'static str] {
        if self.architecture.is_own() { &[] } else { &OF_AN_ARCHITECTURE }
    }

    /// The script for each kernel.
    fn script(&self) -> String {
        if !self.architecture.is_own() {
            return self.each(&OF_AN_ARCHITECTURE, [].into_iter());
        }
        let skipped = [AT_DEVICES].into_iter().chain(OF_THIS_MACHINE).chain(RULES.concat());
        self.each(&[FILTER], skipped.chain(self.absent.map(|(tests, _)| tests)))
    }

    /// The script of a share of the rules, for one kernel that stands for all.
    fn rules(&self, share: &[&'static str]) -> String {
        self.each(share, [AT_DEVICES].into_iter().chain(RULES_OF_MANY))
    }

    /// Runs each program after printing its name, whatever the result of the one before.
    fn each(&self, filters: &[&str], skipped: impl Iterator<Item = &'static str>) -> String {
        let skip: String = skipped.map(|it| format!(" --skip {it}")).collect();
        let filters = filters.join(" ");
        let run = |program: &PathBuf| {
            let (name, blinded) = (name(program), blinds_constants(program));
            let harden = format!("echo {blinded} > {JIT_HARDEN}\n");
            format!("{harden}echo '{PROGRAM}{name}'\n'{}' {filters}{skip}\n", inside(program))
        };
        let programs: String = self.programs.iter().map(run).collect();
        format!("export PROPTEST_CASES={CASES}\n{programs}")
    }
}

/// How constants in programs are blinded while the tests of one program run: 2 is for all, 1 not for root.
fn blinds_constants(program: &Path) -> u8 {
    if name(program) == RELOADING { 1 } else { 2 }
}

/// The clients in C and, where there is a compiler for it, in Go.
fn clients() -> Result<(PathBuf, Option<PathBuf>), Failure> {
    let go = match Client::go() {
        Ok(go) => Some(go.program().to_owned()),
        Err(BedError::Start { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    Ok((Client::c()?.program().to_owned(), go))
}

/// Runs the script in one kernel, and prints the result. Where the emulator fails, and no test has, it runs the script
/// once more.
fn in_kernel(store: &Store, series: &str, payload: &Payload<'_>, script: &str) -> Tally {
    let mut tally = Tally::default();
    let until = Deadline::after(DEADLINE);
    let mut ran = run_script(store, series, (payload, script, until), &mut tally);
    if let Err(failure @ Failure::NoResult { is_emulators: true, .. }) = &ran
        && tally.failed() == 0
    {
        // Shown even where the lines of a script are shown only if something failed.
        let notice = "the emulator has failed, and the whole script runs once more";
        let _ = writeln!(std::io::stderr(), "kernel {series}: {notice}: {}", described(failure));
        tally = Tally::default();
        ran = run_script(store, series, (payload, script, until), &mut tally);
    }
    let version = ran.unwrap_or_else(|failure| {
        tally.hear(&described(&failure));
        series.to_owned()
    });
    let absent = payload.absent.map(|(tests, needs)| format!("; not run: {tests} (needs {needs})"));
    let absent = absent.unwrap_or_default();
    say(&format!("kernel {version}: {tally}; not run: {AT_DEVICES} (needs tc){absent}"));
    if tally.failed() > 0 {
        tally.lines().iter().for_each(|line| say(&format!("  {series} | {line}")));
    }
    tally
}

/// Runs the script once, and returns the kernel's version.
fn run_script(
    store: &Store,
    series: &str,
    (payload, script, until): (&Payload<'_>, &str, Deadline),
    tally: &mut Tally,
) -> Result<String, Failure> {
    let deadline = until.remaining();
    let build = Build { memory_mib: MEMORY_MIB, disk: None, second: None, deadline, slower: 1, append: "" };
    let kernel = store.kernel(series)?;
    machine::run(store, &kernel, &payload.errand(script), &build, &mut |line| tally.hear(line))?;
    tally.require(payload.required());
    store.describe(series)
}

fn say(line: &str) {
    // A reader that closed the pipe wants no answer.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A test program's name without cargo's hash.
fn name(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    name.rsplit_once('-').map_or(name.as_ref(), |(name, _)| name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_runs_after_its_name() {
        let programs = [PathBuf::from("/t/deps/holdfast_datapath-0a"), PathBuf::from("/t/b")];
        let absent = Some(("go_client", "go"));
        let payload =
            Payload { architecture: Architecture::OWN, programs: &programs, beside: Vec::new(), absent };
        let skipped = |tests: &[&str]| -> String { tests.iter().map(|it| format!(" --skip {it}")).collect() };
        let skip = format!(
            "--skip kernel::packets::tests --skip scenarios::kernel_ --skip stale::kernel_ --skip checks::kernel_ \
             --skip names::kernel_ --skip diagnosed_faults::{} --skip go_client",
            skipped(&RULES.concat())
        );
        let expected = format!(
            "export PROPTEST_CASES=3\necho 1 > {JIT_HARDEN}\necho 'program holdfast_datapath'\n\
             '/payload/holdfast_datapath-0a' kernel_ {skip}\n\
             echo 2 > {JIT_HARDEN}\necho 'program b'\n'/payload/b' kernel_ {skip}\n"
        );
        assert_eq!(payload.script(), expected);
        let rules = format!(
            "'/payload/b' {} --skip kernel::packets::tests{}\n",
            RULES[1].join(" "),
            skipped(&RULES_OF_MANY)
        );
        assert!(payload.rules(RULES[1]).ends_with(&rules), "{}", payload.rules(RULES[1]));
    }

    #[test]
    fn each_share_of_the_rules_has_its_turn_in_the_suite() {
        let parts = include_str!("../../parts.toml");
        let is_a_turn = |share: usize| parts.contains(&format!("\"rules-{share}\""));
        assert!((1..=RULES.len()).all(is_a_turn) && !is_a_turn(RULES.len() + 1));
    }

    #[test]
    fn another_architecture_runs_its_own_selection() {
        let programs = [PathBuf::from("/t/b")];
        let architecture = Architecture::Arm64;
        let payload = Payload { architecture, programs: &programs, beside: Vec::new(), absent: None };
        let expected = format!("'/payload/b' {}\n", OF_AN_ARCHITECTURE.join(" "));
        assert!(payload.script().ends_with(&expected), "{}", payload.script());
    }
}
