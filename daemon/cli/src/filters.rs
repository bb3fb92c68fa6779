//! Filters of a query, as arguments of a command.
//!
//! Invariant: each filter has its name from the admin API, and passes its value unchanged. If a command only queries a
//! path, the parameters of the path are its arguments.

use std::ffi::OsStr;
use std::marker::PhantomData;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, ArgMatches, Command, ValueHint};

use holdfast_api::parameters;
use holdfast_api::query::{Argument, Parameter};

/// A path of the admin API with filters.
pub trait FilteredPath: Clone + std::fmt::Debug + Send + Sync + 'static {
    /// The parameters that the path accepts.
    const PARAMETERS: &'static [Parameter];
}

/// The values for the parameters of a path.
#[derive(Clone, Debug)]
pub struct Filters<P> {
    pub(super) values: Vec<(&'static str, String)>,
    path: PhantomData<P>,
}

impl<P: FilteredPath> clap::Args for Filters<P> {
    fn augment_args(command: Command) -> Command {
        P::PARAMETERS.iter().filter_map(build_argument).fold(command, Command::arg)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn build_argument(parameter: &Parameter) -> Option<Arg> {
    let Argument { value_name, help, is_positional } = parameter.argument?;
    let help = help.unwrap_or_else(|| parameter.about.trim_end_matches('.'));
    let argument = Arg::new(parameter.name).value_name(value_name).help(help).value_hint(ValueHint::Other);
    let argument = match parameter.words() {
        Some(words) => argument.value_parser(Suggestion { words }).ignore_case(true),
        None => argument,
    };
    Some(if is_positional { argument } else { argument.long(parameter.name) })
}

/// Words that help and shells offer. The daemon judges them, because it may know more of them.
#[derive(Clone)]
struct Suggestion {
    words: fn() -> Vec<&'static str>,
}

impl TypedValueParser for Suggestion {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.words)().into_iter().map(PossibleValue::new)))
    }
}

impl<P: FilteredPath> clap::FromArgMatches for Filters<P> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let names = P::PARAMETERS.iter().filter(|it| it.argument.is_some()).map(|it| it.name);
        let given = names.filter_map(|name| Some((name, matches.get_one::<String>(name)?.clone())));
        Ok(Self { values: given.collect(), path: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

macro_rules! filtered_paths {
    ($($path:ident by $parameters:ident),+) => {$(
        #[derive(Clone, Debug)]
        pub struct $path;

        impl FilteredPath for $path {
            const PARAMETERS: &'static [Parameter] = parameters::$parameters;
        }
    )+};
}

filtered_paths!(
    Frontends by FRONTENDS,
    Backends by BACKENDS,
    Services by SERVICES,
    Refusals by REFUSALS,
    Flows by FLOWS,
    Events by EVENTS,
    History by HISTORY,
    Watch by WATCH
);

/// The arguments of a command that shows a table.
#[derive(Clone, Debug, clap::Args)]
pub struct TableArgs<P: FilteredPath> {
    #[command(flatten)]
    pub(super) filters: Filters<P>,
    /// Go on: write each row that changes, until interrupted
    #[arg(short = 'w', long = "watch")]
    pub(super) is_followed: bool,
}

/// The arguments of `explain`.
#[derive(Clone, Debug, clap::Args)]
pub struct ExplainArgs {
    /// `NAMESPACE/NAME`, a node port, or an address with its port: a frontend or a backend [default: everything that is
    /// not served]
    #[arg(value_hint = ValueHint::Other)]
    pub(super) what: Option<String>,
    /// Trace the first packet of this client at the address, step by step; nothing is sent
    #[arg(long, value_hint = ValueHint::Other, value_name = "IP", visible_alias = "client", requires = "what")]
    pub(super) from: Option<String>,
    /// By UDP, like `/UDP` after the address
    #[arg(long, requires = "what")]
    pub(super) udp: bool,
}

/// The arguments of `diagnose`.
#[derive(Clone, Debug, clap::Args)]
pub struct DiagnoseArgs {
    /// Exactly this service [default: the node's status, and the first services in trouble]
    #[arg(value_name = "NAMESPACE/NAME", value_hint = ValueHint::Other)]
    pub(super) service: Option<String>,
    /// Open no connections to its frontends and backends
    #[arg(long)]
    pub(super) no_probe: bool,
    /// Only this port, by its name, its number, or its node port
    #[arg(long, value_hint = ValueHint::Other, value_name = "PORT", requires = "service")]
    pub(super) port: Option<String>,
    /// Request this path from backends that speak HTTP; no redirect is followed
    #[arg(long, value_hint = ValueHint::Other, value_name = "PATH", conflicts_with = "no_probe", requires = "service")]
    pub(super) http: Option<String>,
    /// A client that does not reach the service: show what it would get at each frontend; nothing is sent
    #[arg(long, value_hint = ValueHint::Other, value_name = "IP", visible_alias = "from", requires = "service")]
    pub(super) client: Option<String>,
    /// How far back a change counts as recent, such as `15m`, `2h`, `1d` [default: 1h]
    #[arg(long, value_hint = ValueHint::Other, value_name = "TIME")]
    pub(super) since: Option<String>,
    /// How long the answer may take, in whole seconds; the rest is reported as unknown [default and most: 5s]
    #[arg(long, value_hint = ValueHint::Other, value_name = "SECONDS")]
    pub(super) timeout: Option<String>,
    /// Describe the check of this name and when it passes, without a query
    #[arg(long, value_hint = ValueHint::Other, value_name = "CHECK", exclusive = true)]
    pub(super) explain: Option<String>,
}

/// The arguments of `drain`.
#[derive(Clone, Debug, clap::Args)]
pub struct DrainArgs {
    /// The address of the backends, with a port to drain only that [default: show all drains]
    #[arg(value_name = "ADDRESS[:PORT]", value_hint = ValueHint::Other)]
    pub(super) backend: Option<String>,
    /// In exactly this service, and in no other
    #[arg(long, value_hint = ValueHint::Other, value_name = "NAMESPACE/NAME", requires = "backend")]
    pub(super) service: Option<String>,
}

/// The arguments of `undrain`.
#[derive(Clone, Debug, clap::Args)]
pub struct UndrainArgs {
    /// The address of the backends, with its port if that was drained
    #[arg(value_name = "ADDRESS[:PORT]", value_hint = ValueHint::Other)]
    pub(super) backend: String,
    /// In exactly this service, if it was drained there
    #[arg(long, value_hint = ValueHint::Other, value_name = "NAMESPACE/NAME")]
    pub(super) service: Option<String>,
}
