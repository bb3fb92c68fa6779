//! Closed ports: a cluster IP's missing port refuses clients, and the daemon reports a backend without a listening
//! socket from the refusals of its host.

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::fabric::Switches;
use holdfast_tests::packets::{Clients, Family, SERVICES, Service};

use crate::changes::wait_until;
use crate::node::on_a_node;

fn service(name: &str) -> Service {
    *SERVICES.iter().find(|it| it.name == name).unwrap()
}

fn ask(clients: &mut Clients, name: &str, family: Family) -> Outcome {
    let to = service(name).frontend("balancer", family).unwrap();
    clients.client("outside").unwrap().ask(Question::new(Transport::Udp, to)).unwrap()
}

#[test]
fn a_cluster_ips_missing_port_refuses_node_and_pods() {
    on_a_node(Switches::default(), "", |_, daemon, clients| {
        for client in ["host", "pod-a"] {
            for family in [Family::V4, Family::V6] {
                let missed = service("here").frontend("cluster:81", family).unwrap();
                let question = Question::new(Transport::Tcp, missed);
                let outcome = clients.client(client).unwrap().ask(question).unwrap();
                assert_eq!(outcome, Outcome::Refused, "{client} at {missed}");
            }
        }
        let refusals = daemon.tell(&["refusals"]).unwrap();
        assert!(refusals.contains("the service has no such port"), "{refusals}");
    });
}

/// What an explanation says of a backend that the sweep has found refusing.
const FAILS: &str = "8081 refused clients of ";

#[test]
fn a_pod_that_refuses_datagrams_is_reported_without_a_probe() {
    on_a_node(Switches::default(), "", |_, daemon, clients| {
        let told = |words: &[&str]| daemon.tell(words).unwrap();
        let diagnosed =
            |name: &str| told(&["diagnose", &format!("default/{name}"), "--no-probe", "-o", "wide"]);
        for name in ["closed", "closed-away", "here"] {
            let before = diagnosed(name);
            assert!(before.contains("skipped  flows.refused"), "nobody has sent it anything: {before}");
        }
        for (name, at) in [("closed", "8081"), ("closed-away", "8081")] {
            for family in [Family::V4, Family::V6] {
                assert_eq!(ask(clients, name, family), Outcome::Refused, "{name}");
            }
            let text = diagnosed(name);
            assert!(text.contains("error    flows.refused"), "{text}");
            assert!(text.contains("2 clients outside are refused by") && text.contains(at), "{text}");
            wait_until(|| told(&["explain", &format!("default/{name}")]).contains(FAILS));
        }
        assert!(matches!(ask(clients, "here", Family::V4), Outcome::Answered { .. }));
        assert!(!diagnosed("here").contains("refused by"));
        assert!(!told(&["explain", "default/here"]).contains(FAILS));
    });
}
