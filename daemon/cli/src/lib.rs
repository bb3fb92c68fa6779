//! The command line: queries to the running daemon, and commands that need no daemon.
//!
//! Invariant: a query prints the daemon's answer unchanged, so the command line and the API cannot disagree. Only
//! `verify`, `status`, `top` and `watch` are worded here, from the daemon's JSON. Exit codes are a contract: see
//! [`Exit`].

#![forbid(unsafe_code)]

mod bugreport;
mod check;
mod cleanup;
mod client;
mod completions;
mod described_check;
mod diagnose_node;
mod exit;
mod explain_target;
mod filters;
mod follow;
mod guide;
mod health;
mod import;
mod paint;
mod partly_read;
mod prepare;
mod query_path;
mod report;
mod status;
mod suggestions;
mod terminal_filter;
#[cfg(test)]
mod tests;
mod top;
mod watch;
mod yaml;

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, ValueHint};
use clap_complete::Shell;
use serde_json::{Value, json};

pub use exit::Exit;

use bugreport::BugreportArgs;
use client::{Client, ClientError, Reply};
use described_check::print_check;
use explain_target::{describe_missing_port, expand_node_port};
use filters::{
    Backends, DiagnoseArgs, DrainArgs, Events, ExplainArgs, FilteredPath, Filters, Flows, Frontends, History,
    Refusals, Services, TableArgs, UndrainArgs, Watch,
};
use guide::GuideWriter;
use holdfast_api::form::Form;
use holdfast_api::verify::{Verification, VerifyOutcome};
use holdfast_config::{self as config, NodeName};
use holdfast_import::Format;
use partly_read::PartlyRead;
use query_path::{build_path, encode_component};
use report::Report;
use terminal_filter::TerminalFilter;
use yaml::YamlWriter;

pub const CONFIG_PATH: &str = "/etc/holdfast/holdfast.toml";

/// Kubernetes services on this host, programmed into the kernel.
#[derive(Clone, Debug, Parser)]
#[command(name = "holdfast", version, arg_required_else_help = true, after_help = exit::describe_all())]
pub struct Cli {
    #[command(flatten)]
    connect: ConnectArgs,
    /// The format of answers
    #[arg(
        short, long, global = true, value_enum, ignore_case = true, default_value_t = OutputFormat::Table,
        help_heading = GLOBAL_OPTIONS
    )]
    output: OutputFormat,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The heading of the options that belong to every command.
const GLOBAL_OPTIONS: &str = "Global options";

/// The format of what a command prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OutputFormat {
    /// Aligned columns that fit a screen
    Table,
    /// Aligned columns, all of them
    Wide,
    /// JSON, for programs
    Json,
    /// YAML, with the fields of the JSON
    Yaml,
}

/// How to reach the daemon.
#[derive(Clone, Debug, clap::Args)]
struct ConnectArgs {
    /// The daemon's unix socket, and nothing else [default: /run/holdfast/admin.sock; queries then try TCP]
    #[arg(long, global = true, value_name = "PATH", conflicts_with = "tcp", help_heading = GLOBAL_OPTIONS)]
    socket: Option<PathBuf>,
    /// The daemon's TCP address, and nothing else [default for queries: 127.0.0.1:9890, after the socket]
    #[arg(
        long, global = true, value_name = "HOST[:PORT]", value_parser = parse_tcp_address,
        value_hint = ValueHint::Hostname, help_heading = GLOBAL_OPTIONS
    )]
    tcp: Option<String>,
}

/// The commands.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Run the daemon
    Run(Run),
    /// A command that ends with an answer.
    #[command(flatten)]
    Client(ClientCommand),
}

/// The arguments of `holdfast run`.
#[derive(Clone, Debug, clap::Args)]
pub struct Run {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = CONFIG_PATH)]
    pub config: PathBuf,
    /// The node's name in Kubernetes; it overrides the configuration, which many nodes may share
    #[arg(long, value_name = "NAME", value_parser = NodeName::parse)]
    pub node_name: Option<NodeName>,
}

/// Every command except running the daemon.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum ClientCommand {
    /// Is all well? One screen, which ends with 1 if not; it dials no backend
    #[command(after_help = exit::STATUS)]
    Status,
    /// All services live on a terminal, the worst first: type to filter, arrows to sort and select, `q` to quit
    Top,
    /// All frontends, and what clients get there
    Frontends(TableArgs<Frontends>),
    /// Every endpoint of every port, used or not, and why not
    Backends(TableArgs<Backends>),
    /// Every known service, and rejected objects
    Services(TableArgs<Services>),
    /// What does a client get at a service or an address, and why? By the table; nothing is dialled
    #[command(after_help = exit::EXPLAIN)]
    Explain(ExplainArgs),
    /// What is wrong with a service, and what to do next? Dials its backends; `-o wide` also shows passed checks
    #[command(after_help = exit::DIAGNOSE)]
    Diagnose(DiagnoseArgs),
    /// The cluster's Events: their meaning, their causes and what helps
    #[command(after_help = exit::EVENTS)]
    Events(Filters<Events>),
    /// Are apiserver, memory and maps equal? The exit code answers
    #[command(after_help = exit::VERIFY)]
    Verify,
    /// Is the daemon alive, or ready? The exit code answers, for probes
    Health {
        /// The probe
        #[arg(value_name = "live|ready")]
        what: health::HealthProbe,
    },
    /// Rejected clients, newest first
    Refusals(Filters<Refusals>),
    /// Clients from outside, their backends, and the counts of their packets
    Flows(Filters<Flows>),
    /// Every change with its cause, oldest first
    History(Filters<History>),
    /// Every change and every event as it happens, until interrupted
    Watch(Filters<Watch>),
    /// Programs and maps in the kernel, and how full the maps are
    #[command(after_help = exit::DATAPATH)]
    Datapath,
    /// The apiserver in use, why that one, and the errors of the others
    #[command(after_help = exit::APISERVER)]
    Apiserver {
        /// The action [default: show it]
        #[command(subcommand)]
        action: Option<ApiserverAction>,
    },
    /// Detach every program and remove every map of a daemon that does not run
    Cleanup {
        /// The configuration, which names the pins [default: /etc/holdfast/holdfast.toml, if it exists]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// First let flows of outside clients end; repeat until all is removed
        #[arg(long)]
        drain: bool,
    },
    /// Before the daemon starts: create the map of client sockets outside the daemon's memory limit
    #[command(hide = true)]
    Prepare {
        /// The configuration, which names the pins [default: /etc/holdfast/holdfast.toml, if it exists]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Create nothing; end with 1 if there is nothing to serve, so that systemd does not start the daemon
        #[arg(long)]
        condition: bool,
    },
    /// Give backends no new clients, for maintenance; without a backend: show all drains
    #[command(after_help = exit::DRAIN)]
    Drain(DrainArgs),
    /// Give drained backends new clients again
    #[command(after_help = exit::UNDRAIN)]
    Undrain(UndrainArgs),
    /// Make the running daemon read its configuration again; the old one stays if the new one is bad
    Reload,
    /// Find every error in a configuration
    CheckConfig {
        /// The file of the configuration [default: that of the daemon that runs, else /etc/holdfast/holdfast.toml]
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
    /// Convert another load balancer's file to `[[service]]` blocks: of IPVS, keepalived or `HAProxy`
    #[command(after_help = exit::IMPORT)]
    Import {
        /// Output of `ipvsadm --save --numeric`, keepalived.conf or haproxy.cfg; "-" is standard input
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The format of the file: ipvs, keepalived or haproxy [default: detected]
        #[arg(long, value_name = "FORMAT", value_parser = import::parse_format, value_hint = ValueHint::Other)]
        from: Option<Format>,
    },
    /// Write an archive for a report of a problem; without `--write`, show what it would hold
    #[command(after_help = exit::BUGREPORT)]
    Bugreport(BugreportArgs),
    /// Print the completions for a shell
    Completions {
        /// The shell for the completions
        shell: Shell,
    },
}

/// The actions on known apiservers.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum ApiserverAction {
    /// Forget a learned address that the cluster no longer lists; needs the socket
    Forget {
        /// The address with its port, as `holdfast apiserver` shows it
        #[arg(value_name = "ADDRESS", value_hint = ValueHint::Other)]
        address: SocketAddr,
    },
}

/// The commands that reach no daemon.
const LOCAL_COMMANDS: [&str; 5] = ["run", "cleanup", "prepare", "import", "completions"];

/// The commands that have one form.
const COMMANDS_WITHOUT_FORMS: [&str; 3] = ["run", "top", "completions"];

/// The command line, where a command does not offer global options that do nothing for it.
fn command() -> clap::Command {
    let hide = |command: clap::Command, name: &str, ids: &[&'static str]| {
        let hidden = |id: &&'static str| clap::Arg::new(*id).long(*id).hide(true);
        command.mut_subcommand(name, |it| ids.iter().map(hidden).fold(it, clap::Command::arg))
    };
    let local = LOCAL_COMMANDS.iter().fold(Cli::command(), |all, name| hide(all, name, &["socket", "tcp"]));
    COMMANDS_WITHOUT_FORMS.iter().fold(local, |all, name| hide(all, name, &["output"]))
}

/// Parses the command line. Writes clap's own output (help, version, errors) and returns the exit instead.
pub fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Cli, Exit> {
    let parsed =
        command().try_get_matches_from(arguments).and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| {
        // If this write fails, nothing else can report it.
        if error.use_stderr() {
            let _ = write!(err, "{}", suggestions::add_tip(&error));
            Exit::Usage
        } else {
            let _ = write!(out, "{error}");
            Exit::Good
        }
    })
}

const FOLLOWED_AS_TEXT: &str =
    "-w writes rows for people\nhint: `holdfast watch -o json` writes each change for a program";

impl Cli {
    /// Runs a command: with colours if the terminal shows them and the user wants them.
    pub fn run_in_colour(&self, question: &ClientCommand, out: impl Write, err: &mut impl Write) -> Exit {
        let is_file = matches!(question, ClientCommand::Completions { .. } | ClientCommand::Import { .. });
        let is_text = !is_file && self.form() != Form::Json;
        let mut painted = paint::ColourWriter::new(out);
        match is_text {
            true => self.run_command(question, &mut painted, err),
            false => self.run_command(question, painted.without_colours(), err),
        }
    }

    /// Runs a command without colours.
    pub fn run_command(&self, question: &ClientCommand, out: &mut impl Write, err: &mut impl Write) -> Exit {
        let client = self.client();
        let out = &mut PartlyRead::of_command(out, question);
        let answered = match self.output {
            OutputFormat::Yaml => {
                let mut yaml = YamlWriter::new(TerminalFilter::new(&mut *out, Form::Table));
                let answered = self.dispatch_command(&client, question, &mut yaml, err);
                answered.and_then(|exit| yaml.finish().map(|()| exit).map_err(Into::into))
            }
            OutputFormat::Table | OutputFormat::Wide | OutputFormat::Json => {
                self.dispatch_command(&client, question, out, err)
            }
        };
        client.report_fallback(err);
        answered.unwrap_or_else(|error| error.report(err))
    }

    /// The format that the daemon is asked for.
    const fn form(&self) -> Form {
        match self.output {
            OutputFormat::Table => Form::Table,
            OutputFormat::Wide => Form::Wide,
            OutputFormat::Json | OutputFormat::Yaml => Form::Json,
        }
    }

    /// Filters the daemon's answers for a terminal. `top` draws on one itself, and the other commands write their own
    /// text.
    fn dispatch_command(
        &self,
        client: &Client,
        question: &ClientCommand,
        out: &mut impl Write,
        err: &mut impl Write,
    ) -> Result<Exit, ClientError> {
        let fit = &mut TerminalFilter::new(&mut *out, self.form());
        match question {
            ClientCommand::Status => status::run_status(client, self.form() == Form::Json, fit),
            ClientCommand::Top => top::run_top(client, out),
            ClientCommand::Frontends(table) => self.show_table(client, "frontends", table, (fit, err)),
            ClientCommand::Backends(table) => self.show_table(client, "backends", table, (fit, err)),
            ClientCommand::Services(table) => self.show_table(client, "services", table, (fit, err)),
            ClientCommand::Explain(asked) => self.explain(client, asked, fit),
            ClientCommand::Diagnose(asked) => self.diagnose(client, asked, fit),
            ClientCommand::Events(filter) => {
                let begin = format!("/events?format={}", self.form().as_str());
                self.copy_with_exit(client, &build_path(&begin, &filter.values), fit)
            }
            ClientCommand::Verify => self.verify(client, fit),
            ClientCommand::Health { what } => health::query_health(client, *what, self.form(), fit),
            ClientCommand::Refusals(filter) => self.query_table(client, "refusals", &filter.values, fit),
            ClientCommand::Flows(filter) => self.query_table(client, "flows", &filter.values, fit),
            ClientCommand::History(filter) => self.query_table(client, "history", &filter.values, fit),
            ClientCommand::Watch(filter) => {
                watch::run_watch(client, &build_path("/watch?", &filter.values), self.form(), fit, err)
            }
            ClientCommand::Datapath => self.datapath(client, fit),
            ClientCommand::Apiserver { action: None } => self.query_table(client, "apiserver", &[], fit),
            ClientCommand::Apiserver { action: Some(ApiserverAction::Forget { address }) } => {
                self.forget(client, *address, fit)
            }
            ClientCommand::Drain(order) => self.drain(client, order, fit),
            ClientCommand::Undrain(UndrainArgs { backend, service }) => {
                self.send_order(client, "undrain", (backend, service.as_deref()), fit)
            }
            ClientCommand::Reload => self.reload(client, fit),
            ClientCommand::Cleanup { config, drain } => {
                self.write(&cleanup::cleanup(config.as_deref(), *drain), out, err)
            }
            ClientCommand::Prepare { config, condition } => {
                self.write(&prepare::run_prepare(config.as_deref(), *condition), out, err)
            }
            ClientCommand::CheckConfig { file } => {
                let used = check::running_config(&self.socket_client());
                self.write(&check::check_file(file.as_deref(), used.as_deref()), out, err)
            }
            ClientCommand::Import { file, from } => self.write(&import::import_file(file, *from), out, err),
            ClientCommand::Bugreport(BugreportArgs { write }) => {
                bugreport::run_bugreport(client, write.as_deref())
                    .write(self.form(), out, err)
                    .map_err(Into::into)
            }
            ClientCommand::Completions { shell } => {
                completions::print_completions(*shell, out).map_err(Into::into)
            }
        }
    }

    /// Shows programs and maps, and ends as `status` judges them.
    fn datapath(&self, client: &Client, out: &mut impl Write) -> Result<Exit, ClientError> {
        let exit = self.query_table(client, "datapath", &[], out)?;
        Ok(if status::has_datapath_faults(client)? { Exit::Finding } else { exit })
    }

    /// Orders a drain, or shows all drains.
    fn drain(&self, client: &Client, order: &DrainArgs, out: &mut impl Write) -> Result<Exit, ClientError> {
        match order {
            DrainArgs { backend: None, .. } => self.query_table(client, "drains", &[], out),
            DrainArgs { backend: Some(backend), service } => {
                self.send_order(client, "drain", (backend, service.as_deref()), out)
            }
        }
    }

    fn write(
        &self,
        report: &Report,
        out: &mut impl Write,
        err: &mut impl Write,
    ) -> Result<Exit, ClientError> {
        Ok(report.write(self.form(), out, err)?)
    }

    fn client(&self) -> Client {
        match (&self.connect.socket, &self.connect.tcp) {
            (Some(socket), _) => Client::new(Some(socket.clone()), None),
            (None, Some(address)) => Client::new(None, Some(address.clone())),
            (None, None) => {
                let config::Admin { listen, socket } = config::Admin::default();
                Client::new(Some(socket), Some(listen.address().to_string()))
            }
        }
    }

    /// A client that asks no port where any process may answer, unless the user names one.
    fn socket_client(&self) -> Client {
        match (&self.connect.socket, &self.connect.tcp) {
            (None, None) => Client::new(Some(config::Admin::default().socket), None),
            _ => self.client(),
        }
    }

    /// Explains an address or a service. An argument without a slash is an address, and so is an address with its port
    /// before a slash and a protocol; anything else is a service.
    fn explain(
        &self,
        client: &Client,
        asked: &ExplainArgs,
        out: &mut impl Write,
    ) -> Result<Exit, ClientError> {
        let ExplainArgs { what, from, udp } = asked;
        if let Some(message) = describe_missing_port(asked) {
            return Err(ClientError::Refused { status: 400, message });
        }
        let what = what.as_deref().map(expand_node_port);
        let filter = what.as_deref().map(|what| {
            let address = what.split_once('/').map_or(what, |(address, _)| address);
            let is_address = !what.contains('/') || address.parse::<SocketAddr>().is_ok();
            let name = if is_address { "endpoint" } else { "service" };
            let by = if *udp { "/UDP" } else { "" };
            format!("&{name}={}", encode_component(&format!("{what}{by}")))
        });
        let from =
            from.as_deref().map(|from| format!("&from={}", encode_component(from))).unwrap_or_default();
        let path = format!("/explain?format={}{}{from}", self.form().as_str(), filter.unwrap_or_default());
        let mut answer = client.get(&path)?;
        if answer.status == 404 {
            answer.copy_body(out)?;
            return Ok(answer.exit.unwrap_or(Exit::Finding));
        }
        match self.form() {
            Form::Json => copy_answer(answer, out),
            Form::Table | Form::Wide => copy_answer(answer, &mut GuideWriter::new(out)),
        }
    }

    fn diagnose(
        &self,
        client: &Client,
        asked: &DiagnoseArgs,
        out: &mut impl Write,
    ) -> Result<Exit, ClientError> {
        let DiagnoseArgs { service, no_probe, port, http, client: dialler, since, timeout, explain } = asked;
        if let Some(check) = explain {
            return print_check(check, out);
        }
        let probe = if *no_probe { "none" } else { "connect" };
        let start = format!("/diagnose?format={}&probe={probe}", self.form().as_str());
        let narrowed = [("port", port), ("http", http), ("client", dialler)];
        let filters = narrowed.into_iter().chain([("since", since), ("timeout", timeout)]);
        let given: Vec<_> = filters.filter_map(|(name, value)| Some((name, value.clone()?))).collect();
        let diagnose = |service: &str, out: &mut Vec<u8>| {
            let path = build_path(&start, &[("service", service.to_owned())]);
            self.copy_with_exit(client, &build_path(&path, &given), out)
        };
        match (service, self.form()) {
            (Some(service), _) => {
                let path = build_path(&start, &[("service", service.clone())]);
                self.copy_with_exit(client, &build_path(&path, &given), out)
            }
            (None, Form::Json) => diagnose_node::write_json(client, diagnose, out),
            (None, Form::Table | Form::Wide) => diagnose_node::write_text(client, diagnose, out),
        }
    }

    /// The daemon's answer has the exit code; an answer without one is broken.
    fn copy_with_exit(&self, client: &Client, path: &str, out: &mut impl Write) -> Result<Exit, ClientError> {
        let mut answer = client.get(path)?;
        let Some(exit) = answer.exit else {
            answer.expect_ok()?;
            return Err(ClientError::Broken(io::Error::other("the answer has no exit code")));
        };
        answer.copy_body(out)?;
        Ok(exit)
    }

    /// The verdict is a field of the JSON, so this always queries JSON.
    fn verify(&self, client: &Client, out: &mut impl Write) -> Result<Exit, ClientError> {
        let json = client.get("/verify?format=json")?.expect_ok()?.read_whole()?;
        let answer: Verification =
            serde_json::from_slice(&json).map_err(|error| ClientError::Broken(error.into()))?;
        match self.form() {
            Form::Json => out.write_all(&json)?,
            Form::Table | Form::Wide => out.write_all(answer.text().as_bytes())?,
        }
        out.flush()?;
        Ok(match answer.outcome() {
            VerifyOutcome::Equal => Exit::Good,
            VerifyOutcome::Different => Exit::Finding,
            VerifyOutcome::Incomplete => Exit::Incomplete,
        })
    }

    /// Makes the daemon read its configuration again. Only the socket accepts this order.
    fn reload(&self, client: &Client, out: &mut impl Write) -> Result<Exit, ClientError> {
        let path = format!("/reload?format={}", self.form().as_str());
        let mut answer = client.post(&path)?;
        if self.form() == Form::Json && answer.status == 422 {
            let why = answer.read_short()?;
            writeln!(out, "{}", reload_refusal(&why))?;
            return Ok(Exit::Config);
        }
        copy_answer(answer, out)
    }

    /// Makes the daemon drain or undrain backends. Only the socket accepts this order, and the answer has the exit
    /// code.
    fn send_order(
        &self,
        client: &Client,
        path: &str,
        (backend, service): (&str, Option<&str>),
        out: &mut impl Write,
    ) -> Result<Exit, ClientError> {
        let service =
            service.map(|service| format!("&service={}", encode_component(service))).unwrap_or_default();
        let form = self.form().as_str();
        let path = format!("/{path}?backend={}{service}&format={form}", encode_component(backend));
        copy_answer(client.post(&path)?, out)
    }

    /// Makes the daemon forget an address. Only the socket accepts this order too.
    fn forget(
        &self,
        client: &Client,
        address: SocketAddr,
        out: &mut impl Write,
    ) -> Result<Exit, ClientError> {
        let address = address.to_string();
        let address = encode_component(&address);
        let form = self.form().as_str();
        let path = format!("/apiserver/forget?endpoint={address}&format={form}");
        copy_answer(client.post(&path)?, out)
    }

    /// Shows a table once, or follows it. A stream of tables would be no JSON; that of records is.
    fn show_table<P: FilteredPath>(
        &self,
        client: &Client,
        name: &str,
        table: &TableArgs<P>,
        (out, err): (&mut impl Write, &mut impl Write),
    ) -> Result<Exit, ClientError> {
        let TableArgs { filters, is_followed } = table;
        match (is_followed, self.form()) {
            (false, _) => self.query_table(client, name, &filters.values, out),
            (true, Form::Json) => {
                Err(ClientError::Refused { status: 400, message: FOLLOWED_AS_TEXT.to_owned() })
            }
            (true, form @ (Form::Table | Form::Wide)) => {
                let path = build_path(&format!("/{name}?format={}", form.as_str()), &filters.values);
                match follow::follow_table(client, &path, out, err)? {}
            }
        }
    }

    fn query_table(
        &self,
        client: &Client,
        table: &str,
        filters: &[(&str, String)],
        out: &mut impl Write,
    ) -> Result<Exit, ClientError> {
        let path = build_path(&format!("/{table}?format={}", self.form().as_str()), filters);
        copy_answer(client.get(&path)?, out)
    }
}

/// Reads a host with or without a port, which is the daemon's usual one then.
fn parse_tcp_address(text: &str) -> Result<String, String> {
    let default = config::Admin::default().listen.address().port();
    if let Ok(host) = text.parse::<std::net::IpAddr>() {
        return Ok(SocketAddr::new(host, default).to_string());
    }
    if let Some(scheme) = text.find("://") {
        return Err(format!("leave {:?} out", text.get(..scheme + 3).unwrap_or_default()));
    }
    let is_host = |host: &str| {
        let is_legal = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_');
        !host.is_empty() && host.chars().all(is_legal)
    };
    match text.rsplit_once(':') {
        _ if text.parse::<SocketAddr>().is_ok() => Ok(text.to_owned()),
        Some((host, port)) if is_host(host) && port.parse::<u16>().is_ok_and(|port| port > 0) => {
            Ok(text.to_owned())
        }
        Some((host, port)) if is_host(host) => Err(format!("{port:?} is no port")),
        None if is_host(text) => Ok(format!("{text}:{default}")),
        Some(_) | None => Err("it is neither HOST, HOST:PORT nor [IPV6]:PORT".to_owned()),
    }
}

/// Copies a good answer and takes the exit that the daemon requests; any other answer is an error.
fn copy_answer(answer: Reply, out: &mut impl Write) -> Result<Exit, ClientError> {
    let exit = answer.exit.unwrap_or(Exit::Good);
    answer.expect_ok()?.copy_body(out)?;
    Ok(exit)
}

/// The daemon's refusal, with the field that marks the reload as refused.
fn reload_refusal(why: &[u8]) -> Value {
    let mut answer: Value = serde_json::from_slice(why).unwrap_or_else(|_| json!({}));
    if let Some(fields) = answer.as_object_mut() {
        fields.insert("reloaded".to_owned(), false.into());
    }
    answer
}
