//! What may keep news of a service from this node: a refused reload, and an apiserver that does not answer.
//!
//! Invariant: while one of them stands, no answer calls a service missing without naming it.

use holdfast_status::views::apiserver::{ApiserverView, Usage};

use crate::formatting::clean;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewsObstacles {
    /// Why the last reload was refused; `None`: it was not.
    pub refused_reload: Option<String>,
    /// The file of that reload.
    pub config_file: Option<String>,
    /// Whether an apiserver is used and none answers.
    pub no_apiserver: bool,
}

impl NewsObstacles {
    /// `refused`: why the last reload was refused, and its file.
    pub fn new(refused: Option<(String, String)>, apiserver: Option<&ApiserverView>) -> Self {
        let no_apiserver = apiserver.is_some_and(|view| matches!(view.usage(), Usage::Unreachable));
        let (refused_reload, config_file) = refused.unzip();
        Self { refused_reload, config_file, no_apiserver }
    }

    /// Sentences to append to one that calls a service unknown; empty if nothing keeps news away.
    pub fn describe(&self) -> String {
        let reload = self.refused_reload.as_ref().map(|why| {
            format!(
                " The last reload was refused, so what is new in the configuration is not in force: {}.",
                clean(why).trim_end_matches('.')
            )
        });
        let silent = " No apiserver answers, so what is newer than the last contact is not known here \
                      (holdfast apiserver).";
        reload.unwrap_or_default() + if self.no_apiserver { silent } else { "" }
    }
}
