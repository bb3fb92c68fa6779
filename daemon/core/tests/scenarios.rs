//! Every scenario file over every kind of maps in memory, as written and with a restart between any two steps.

#![cfg(test)]

use std::path::{Path, PathBuf};

use holdfast_laws::scenario::{
    Command, FaultyMemory, MapMaker, Memory, Restarts, RulesAlone, Runner, Scenario, View, check, difference,
    play,
};

/// One op in ten fails; three sequences, so that no rule passes by luck.
const SEEDS: [u64; 3] = [1, 0x9e37_79b9_7f4a_7c15, 0xdead_beef];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios")
}

fn files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder()).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "scenario"));
    files.sort();
    files
}

fn scenario(name: &str) -> Scenario {
    let text = std::fs::read_to_string(folder().join(format!("{name}.scenario"))).unwrap();
    Scenario::parse(&text).unwrap()
}

/// Scenarios with a configuration need a daemon that reads it; they run with the whole daemon.
const WITH_CONFIGURATION: [&str; 5] = [
    "conflict-order-of-precedence",
    "frontend-addresses-that-nobody-may-have",
    "static-service-bypassed",
    "static-service-without-backends",
    "static-service",
];

fn needs_a_configuration(file: &Path) -> bool {
    let scenario = Scenario::parse(&std::fs::read_to_string(file).unwrap()).unwrap();
    scenario.steps().iter().any(|step| matches!(step.command, Command::Config(_)))
}

#[test]
fn every_scenario_holds_over_every_kind_of_maps() {
    let faulty = SEEDS.map(|seed| FaultyMemory { seed });
    let mut makers: Vec<&dyn MapMaker> = vec![&Memory];
    makers.extend(faulty.iter().map(|maker| maker as &dyn MapMaker));
    let (left_out, files): (Vec<_>, Vec<_>) =
        files().into_iter().partition(|file| needs_a_configuration(file));
    assert!(files.len() > 60, "only {} scenarios in {}", files.len(), folder().display());
    let check = |file: &PathBuf| check(file, &RulesAlone, &makers, false).err();
    let failures: Vec<String> = files.iter().filter_map(check).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let left_out: Vec<_> = left_out.iter().map(|file| file.file_stem().unwrap().to_string_lossy()).collect();
    assert_eq!(left_out, WITH_CONFIGURATION);
}

/// The object or setting of a step: steps of one subject keep their order, all others may come in any order.
fn subject(command: &Command) -> String {
    match command {
        Command::File(name, _) | Command::Remove(name) => name.clone(),
        Command::Node(_) => "the node".to_owned(),
        other => panic!("no step of a scenario without an order: {other:?}"),
    }
}

/// Every order of the steps that keeps the order within each subject.
fn orders(steps: &[Command]) -> Vec<Vec<Command>> {
    if steps.is_empty() {
        return vec![Vec::new()];
    }
    let mut found = Vec::new();
    for (place, step) in steps.iter().enumerate() {
        let has_earlier = steps[..place].iter().any(|other| subject(other) == subject(step));
        if !has_earlier {
            let rest = [&steps[..place], &steps[place + 1..]].concat();
            found.extend(orders(&rest).into_iter().map(|order| [vec![step.clone()], order].concat()));
        }
    }
    found
}

#[track_caller]
fn check_orders(name: &str, orders_expected: usize) {
    let scenario = scenario(name);
    let steps = scenario.steps().iter().map(|step| &step.command);
    let steps: Vec<Command> = steps.filter(|step| !matches!(step, Command::Show(_))).cloned().collect();
    let orders = orders(&steps);
    assert_eq!(orders.len(), orders_expected, "{name}");
    let expected = last_seen(&scenario, &steps, Restarts::AsWritten);
    for (place, order) in orders.iter().enumerate() {
        for restarts in [Restarts::AsWritten, Restarts::BetweenSteps] {
            let seen = last_seen(&scenario, order, restarts);
            let differs = || difference(&expected.join("\n"), &seen.join("\n"));
            assert!(seen == expected, "{name}, order {place}, {restarts:?}: {order:?}\n{}", differs());
        }
    }
}

/// The views and the maps after these steps, without what depends on the past.
fn last_seen(scenario: &Scenario, steps: &[Command], restarts: Restarts) -> Vec<String> {
    let mut runner = Runner::start(&RulesAlone, &Memory, scenario.sources()).unwrap();
    for step in steps {
        runner.take(step).unwrap();
        if restarts == Restarts::BetweenSteps {
            runner.take(&Command::Restart).unwrap();
        }
    }
    let views = [View::Frontends, View::Backends, View::Services, View::Maps];
    let seen = views.map(|view| runner.show(view).unwrap());
    runner.clear().unwrap();
    forgetful(&seen)
}

/// Dumps without the reasons, which depend on the past, and without the padding, which depends on the reasons.
fn forgetful(dumps: &[String]) -> Vec<String> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words
            .join(" ")
            .replace("refusing vanished", "refusing no-endpoints")
            .replace("refusing scaled-down", "refusing no-endpoints")
    };
    dumps.iter().flat_map(|dump| dump.lines().map(line)).collect()
}

#[test]
fn any_order_of_the_incidents_events_ends_in_one_state() {
    // Six steps about four files, two of them about two: 6! / (2! · 2!).
    check_orders("incident-minimal", 180);
}

#[test]
fn any_order_of_conflicting_claims_ends_in_one_state() {
    check_orders("conflict-order-of-events", 180);
}

#[test]
fn a_wrong_golden_text_is_a_failure() {
    let scenario = scenario("incident-minimal");
    let seen = play(&scenario, &RulesAlone, &Memory, Restarts::AsWritten).unwrap();
    assert_eq!(seen, scenario.golden());
    let wrong: Vec<String> = seen.iter().map(|dump| dump.replace("1.1.1.1", "1.1.1.2")).collect();
    assert_ne!(scenario.blessed(&wrong).golden(), seen);
    assert_eq!(scenario.blessed(&wrong).blessed(&seen).text(), scenario.text(), "blessing loses nothing");
}

#[test]
fn an_invalid_scenario_names_its_line_and_fault() {
    let check = |text: &str, expected: &str| {
        assert_eq!(Scenario::parse(text).unwrap_err().to_string(), expected, "{text:?}");
    };
    check("show frontends\n", "line 1: a scenario begins with a paragraph that states the rule: `# …`");
    check("# a\n\nlook\n", "line 3: \"look\" is no step");
    check("# a\n\n  lost\n", "line 3: \"  lost\" is no step");
    check("# a\nshow nothing\n", "line 2: there is no view \"nothing\"");
    check("# a\ntime 5\n", "line 2: `time +5s`, not \"5\"");
    check("# a\nsettings limit=5\n", "line 2: `30s`, not \"5\"");
    check("# a\nsettings mass_loss_share=0.5\n", "line 2: `25%`, not \"0.5\"");
    check("# a\nsettings on_empty=keep\n", "line 2: \"keep\" is no on_empty");
    check(
        "# a\nprobe default/a 10.0.0.1:80 yes\n",
        "line 2: `probe NAMESPACE/NAME ADDRESS:PORT accepted|refused|silent`, not \"default/a 10.0.0.1:80 yes\"",
    );
    check("# a\nnode zone\n", "line 2: \"zone\" has no `=`");
}
