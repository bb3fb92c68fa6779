//! Drills: disasters on a cluster of three nodes while clients connect in a loop, and the cost of each with holdfast
//! and with the real kube-proxy.
//!
//! The same program runs the drill outside, and in the machines the clients, their server, and the writer of timed
//! changes.
//!
//! Invariant: each attempt of a client is one line with its time, and each counts, except those without a chance,
//! because their own machine or the dialled one was absent; the drill prints which. The last line is `N passed, N
//! failed`.

mod attempts;
mod certificates;
mod client;
mod drills;
mod figures;
mod kubernetes;
mod load;
mod propagation;
mod server;
mod stage;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use holdfast_conformance::{ClusterError, Mode, Proxy, guarded};

use self::client::Target;

type Failure = Box<dyn std::error::Error>;

/// What the command line says.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    order: Order,
}

#[derive(Debug, Subcommand)]
enum Order {
    /// Run drills: without names all of them, on one cluster, one after another.
    Run {
        names: Vec<String>,
        /// The proxy of the Services: holdfast, nftables or iptables.
        #[arg(long, default_value = "holdfast")]
        proxy: String,
        /// Keys of holdfast's `[packets]`, as TOML: one, or several lines.
        #[arg(long)]
        packets: Option<String>,
    },
    /// Time changes from the apiserver to every node.
    Propagation {
        #[arg(long, default_value = "holdfast")]
        proxy: String,
        #[arg(long, default_value_t = 200)]
        changes: u32,
        #[arg(long, default_value_t = 1000)]
        services: u16,
    },
    /// Have pods of Services of three sizes come, be replaced and go, and tell what that takes.
    Load {
        #[arg(long, default_value = "holdfast")]
        proxy: String,
    },
    /// Time starts of a cluster with holdfast and with the real kube-proxy, in turns.
    Start,
    /// In a machine or a pod: dial these, all the time.
    #[command(hide = true)]
    Client { targets: Vec<Target> },
    /// In a pod or a machine: answer with a name.
    #[command(hide = true)]
    Serve { name: String, address: SocketAddr },
    /// In a pod: give back what comes.
    #[command(hide = true)]
    Echo { address: SocketAddr },
    /// In a machine: ask once whether the right server answers.
    #[command(hide = true)]
    Ask { address: SocketAddr },
    /// In a machine: dial one address as often as can be, and say when another one answers.
    #[command(hide = true)]
    Observe { address: SocketAddr },
    /// On the control plane: write changes, and say when.
    #[command(hide = true)]
    Change { changes: u32 },
}

fn main() -> ExitCode {
    let order = Arguments::parse().order;
    match order {
        Order::Run { .. } | Order::Propagation { .. } | Order::Load { .. } | Order::Start => {
            guarded(|| done(order))
        }
        in_a_machine => done(in_a_machine),
    }
}

fn done(order: Order) -> ExitCode {
    match run(order) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // If this cannot be written, there is no other place to report it.
            let _ = writeln!(io::stderr(), "drill: {}", whole(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Whether it went well.
fn run(order: Order) -> Result<bool, Failure> {
    match order {
        Order::Run { names, proxy, packets } => drills::run(&names, &proxy_of(&proxy, packets.as_deref())?),
        Order::Propagation { proxy, changes, services } => {
            propagation::run(&proxy_of(&proxy, None)?, changes, services)
        }
        Order::Load { proxy } => load::run(&proxy_of(&proxy, None)?),
        Order::Start => figures::starts(),
        Order::Client { targets } => client::run(&targets).map(|()| true),
        Order::Ask { address } => Ok(client::name_at(address)? == client::ANSWER),
        Order::Serve { name, address } => server::run(&name, address).map(|()| true),
        Order::Echo { address } => server::echo(address).map(|()| true),
        Order::Observe { address } => propagation::observe(address).map(|()| true),
        Order::Change { changes } => propagation::change(changes).map(|()| true),
    }
}

fn proxy_of(word: &str, packets: Option<&str>) -> Result<Proxy, ClusterError> {
    match word {
        "holdfast" => {
            let config = packets.map(|keys| format!("[packets]\n{keys}\n")).unwrap_or_default();
            Ok(Proxy::Holdfast { config })
        }
        mode => Ok(Proxy::KubeProxy(mode.parse::<Mode>()?)),
    }
}

/// An error with all of its causes.
fn whole(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn say(text: &str) -> Result<(), Failure> {
    Ok(writeln!(io::stdout(), "{text}")?)
}
