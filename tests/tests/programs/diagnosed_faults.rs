//! Twelve faults, each with the commands that an operator types: what they must say, and what they may not.
//!
//! Invariant: an operator needs two commands at most. An answer names the culprit and the next step, and no sentence
//! of it is untrue. The cases are one table; each runs with the maps in memory and with the kernel's programs.

mod cases;
mod refusal_age;
mod restart;
mod setup;
mod tables;

use std::time::{Duration, Instant};

use holdfast_tests::bed::daemon::Daemon;

use self::cases::{Ask, Case};
use self::setup::Datapath;

/// How long an answer may take to show a fault: some checks, watches and sweeps.
const SOON: Duration = Duration::from_secs(30);

/// The most commands that an operator types.
const COMMANDS_MAX: usize = 2;

/// What is untrue of every fault.
const NEVER: [&str; 13] = [
    "Nothing is wrong with this service.",
    "Nothing is wrong for processes in this host",
    "All is well",
    "all is well",
    "every frontend is served",
    "Every frontend is served",
    "it changes when the objects do",
    "never had a usable endpoint",
    "serving 0",
    "connected, ",
    "(manifests, served)",
    "0.0.0.0:30080/TCP NodePort",
    "not tried: connections of this daemon",
];

/// Brings the fault about and reads the answers.
#[track_caller]
fn check(case: &Case, datapath: Datapath) {
    let needed = case.asks.iter().filter(|ask| ask.applies(datapath));
    assert!(needed.count() <= COMMANDS_MAX, "{}", case.name);
    let stage = setup::Stage::new();
    let mut daemon = stage.daemon(case, datapath);
    let _held = stage.bring_about(case, &mut daemon, datapath);
    let asks = case.asks.iter().chain(case.more).chain(tables::find_asks(case.name));
    for ask in asks.filter(|ask| ask.applies(datapath)) {
        check_answer(case, ask, &mut daemon);
    }
    daemon.stop().unwrap();
}

/// Asks until the answer is complete, and fails with what is missing from it.
#[track_caller]
fn check_answer(case: &Case, ask: &Ask, daemon: &mut Daemon<'_>) {
    let until = Instant::now() + SOON;
    loop {
        let (exit, said) = setup::answer(daemon, ask.words);
        // Joins lines, so that no break splits a sentence.
        let joined = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let missing: Vec<_> = ask.says.iter().filter(|said| !joined.contains(**said)).collect();
        let untrue: Vec<_> =
            ask.never.iter().chain(&NEVER).filter(|never| joined.contains(**never)).collect();
        if missing.is_empty() && untrue.is_empty() && exit == Some(ask.exit) {
            println!("{} $ holdfast {}\n{said}exit {exit:?}\n", case.name, ask.words.join(" "));
            return;
        }
        assert!(
            Instant::now() < until && daemon.is_running(),
            "{}: holdfast {} ended with {exit:?} in place of {}; missing: {missing:?}; untrue: {untrue:?}\n{said}\n{}",
            case.name,
            ask.words.join(" "),
            ask.exit,
            daemon.logged()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

macro_rules! faults {
    ($($case:ident, $memory:ident, $kernel:ident;)*) => {
        $(
            #[test]
            fn $memory() {
                check(&cases::$case, Datapath::Memory);
            }

            #[test]
            fn $kernel() {
                check(&cases::$case, Datapath::Kernel);
            }
        )*
    };
}

faults! {
    DEAD_POD, memory_a_dead_pod_that_is_called_ready, kernel_a_dead_pod_that_is_called_ready;
    DRAINED_POD, memory_a_dead_pod_is_drained, kernel_a_dead_pod_is_drained;
    CHECKED_BACKEND, memory_a_checked_backend_is_down, kernel_a_checked_backend_is_down;
    TARGET_PORT, memory_a_wrong_target_port_of_pods, kernel_a_wrong_target_port_of_pods;
    BACKEND_PORT, memory_a_wrong_port_of_a_local_backend, kernel_a_wrong_port_of_a_local_backend;
    HALF_DRAINED, memory_half_of_dead_backends_are_drained, kernel_half_of_dead_backends_are_drained;
    REFUSED_PROCESSES, memory_a_backend_refuses_processes, kernel_a_backend_refuses_processes;
    SELECTOR, memory_a_typo_in_a_selector, kernel_a_typo_in_a_selector;
    SELECTOR_EXPLAINED, memory_a_typo_in_a_selector_explained, kernel_a_typo_in_a_selector_explained;
    IGNORED_KIND, memory_a_kind_that_is_not_read, kernel_a_kind_that_is_not_read;
    NODE_PORT, memory_a_process_at_a_node_port, kernel_a_process_at_a_node_port;
    BLOCK_OF_A_REFUSED_RELOAD, memory_a_block_of_a_refused_reload, kernel_a_block_of_a_refused_reload;
    NAME_WITHOUT_NAMESPACE, memory_a_name_without_its_namespace, kernel_a_name_without_its_namespace;
    TWO_BLOCKS, memory_two_blocks_claim_one_frontend, kernel_two_blocks_claim_one_frontend;
    TWO_SERVICES, memory_two_services_claim_one_frontend, kernel_two_services_claim_one_frontend;
    HOPELESS_CLAIM, memory_a_hopeless_claim, kernel_a_hopeless_claim;
    HEALTH_PORT, memory_a_health_port_is_taken, kernel_a_health_port_is_taken;
    SOURCE_RANGES, memory_source_ranges_exclude_the_client, kernel_source_ranges_exclude_the_client;
    ALL_UNREADY, memory_all_endpoints_are_unready, kernel_all_endpoints_are_unready;
    APISERVER, memory_the_apiserver_is_unreachable, kernel_the_apiserver_is_unreachable;
    APISERVER_ITSELF, memory_the_apiserver_by_its_own_command, kernel_the_apiserver_by_its_own_command;
    DISK, memory_the_disk_is_full, kernel_the_disk_is_full;
    VIP, memory_a_vip_is_claimed_twice, kernel_a_vip_is_claimed_twice;
}
