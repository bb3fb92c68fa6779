//! A record as one line for people: first the result for clients, then the causes.
//!
//! Invariant: a line has no line end and no character that turns it or moves a terminal's cursor, whatever an object
//! contains. A line has no columns, because its number of clauses varies; it begins with the time, the number and the
//! service, by which people search.

use std::fmt::Write as _;

use holdfast_core::keys::Source;

use super::{Diff, Gap, HEALTH_CHECK_WRITER, LastWriter, Met, Record, Transition, Trigger};
use crate::frontend_text::shorten_node_port;
use crate::printable::sanitise_line;

/// How many addresses of one diff a line names; JSON has more.
const ADDRESSES_MAX: usize = 6;

impl Record {
    /// The whole record in one line.
    pub fn sentence(&self) -> String {
        let mut line = self.time.to_string();
        match self.seq {
            Some(seq) => push_args(&mut line, format_args!(" #{seq} ")),
            None => line.push_str(" - "),
        }
        match (&self.gap, &self.service) {
            (Some(gap), _) => line.push_str(&gap.sentence()),
            (None, Some(service)) => {
                push_args(&mut line, format_args!("{service}: {}", self.describe_outcome()));
            }
            (None, None) => line.push_str(&self.describe_outcome()),
        }
        let causes: Vec<String> = self.list_causes().map(Trigger::sentence).collect();
        if !causes.is_empty() {
            push_args(&mut line, format_args!("; because {}", causes.join(", then ")));
        }
        if self.suppressed > 0 {
            push_args(&mut line, format_args!(" (and {} events before)", self.suppressed));
        }
        sanitise_line(&line)
    }

    /// The triggers, without the service of a block where its endpoints follow: both are one block to an operator.
    fn list_causes(&self) -> impl Iterator<Item = &Trigger> {
        let is_told_by = |next: &Trigger, it: &Trigger| {
            it.is_of_block() && it.endpoints.is_none() && next.is_of_block() && next.event == it.event
        };
        let followed = self.triggers.iter().zip(self.triggers.iter().skip(1).map(Some).chain([None]));
        let kept = followed.filter(move |(it, next)| !next.is_some_and(|next| is_told_by(next, it)));
        kept.map(|(it, _)| it)
    }

    /// What clients get from now on.
    fn describe_outcome(&self) -> String {
        let mut clauses: Vec<String> = self.transitions.iter().map(Transition::sentence).collect();
        if self.transitions_omitted > 0 {
            clauses.push(format!("{} more changes", self.transitions_omitted));
        }
        if let Some(error) = self.result.as_ref().and_then(|result| result.error.as_ref()) {
            clauses.push(format!("NOT WRITTEN, will be tried again: {error}"));
        }
        if clauses.is_empty() { "nothing changed for clients".to_owned() } else { clauses.join(" | ") }
    }
}

impl Gap {
    fn sentence(&self) -> String {
        let why = self.cause.to_clause();
        let mut text = match (self.records, self.at_most) {
            (Some(records), _) => format!("GAP: {records} records are missing, because {why}"),
            (None, Some(most)) => format!("GAP: at most {most} records are missing, because {why}"),
            (None, None) => format!("GAP: records are missing, because {why}"),
        };
        if let Some(bytes) = self.bytes {
            push_args(&mut text, format_args!(" ({bytes} bytes)"));
        }
        if let Some(file) = &self.file {
            push_args(&mut text, format_args!(": {file}"));
        }
        let shares: Vec<String> =
            self.namespaces.iter().map(|it| format!("{} of {}", it.records, it.namespace)).collect();
        if !shares.is_empty() {
            push_args(&mut text, format_args!(": {}", shares.join(", ")));
        }
        text
    }
}

impl Transition {
    fn sentence(&self) -> String {
        let frontends = self.frontends.iter().map(|it| shorten_node_port(it));
        let mut text = frontends.collect::<Vec<_>>().join(" ");
        if self.frontends_omitted > 0 {
            push_args(&mut text, format_args!(" and {} more", self.frontends_omitted));
        }
        match (&self.before, &self.after) {
            (None, Some(after)) => push_args(&mut text, format_args!(" is new: {}", after.sentence())),
            (Some(before), None) => push_args(&mut text, format_args!(" is gone, was {}", before.sentence())),
            (Some(before), Some(after)) if before.sentence() == after.sentence() => {
                push_args(&mut text, format_args!(" {}", after.sentence()));
            }
            (Some(before), Some(after)) => {
                push_args(&mut text, format_args!(" {} -> {}", before.sentence(), after.sentence()));
            }
            (None, None) => {}
        }
        self.backends.append_to("", &mut text);
        if let Some(external) = &self.external_backends {
            external.append_to("from outside: ", &mut text);
        }
        text
    }
}

impl Met {
    fn sentence(&self) -> String {
        let mut text = self.verdict.to_string();
        match (&self.reason, &self.owner) {
            (Some(reason), Some(owner)) => push_args(&mut text, format_args!(" ({reason} by {owner})")),
            (Some(reason), None) => push_args(&mut text, format_args!(" ({reason})")),
            (None, _) => {}
        }
        if self.status != "done" {
            push_args(&mut text, format_args!(" [{}]", self.status));
        }
        text
    }
}

impl Diff {
    /// Appends the difference: `+` added, `-` removed, `~` in another state, and how many are unchanged.
    fn append_to(&self, scope: &str, text: &mut String) {
        if self.is_empty() {
            return;
        }
        let _ = write!(text, ", {scope}");
        let came = self.added.iter().map(|address| format!("+{address}"));
        let went = self.removed.iter().map(|address| format!("-{address}"));
        let turned = self.changed.iter().map(|it| format!("~{} {} to {}", it.address, it.before, it.after));
        let all: Vec<String> = came.chain(went).chain(turned).collect();
        text.push_str(&self.join_addresses(&all, " "));
        if self.kept > 0 {
            push_args(text, format_args!(", {} kept", self.kept));
        }
    }
}

impl Diff {
    /// The first of its addresses, as they are written, and how many more there are.
    fn join_addresses(&self, all: &[String], separator: &str) -> String {
        let omitted = usize::try_from(self.omitted).unwrap_or(usize::MAX);
        let joined = all.get(..ADDRESSES_MAX).unwrap_or(all).join(separator);
        match all.len().saturating_sub(ADDRESSES_MAX).saturating_add(omitted) {
            0 => joined,
            more => format!("{joined} and {more} more"),
        }
    }
}

impl Trigger {
    /// The cause in words: which object, what changed in it, which version, which writer.
    pub fn sentence(&self) -> String {
        let other = self.other.as_deref().unwrap_or("another service");
        let frontend = shorten_node_port(self.frontend.as_deref().unwrap_or("an address"));
        let address = self.address.as_deref().unwrap_or("a backend");
        match &*self.event {
            "claim-won" => format!("{frontend} is no longer claimed by {other}"),
            "claim-lost" => format!("{frontend} is claimed by {other}"),
            "node" => "the node changed".to_owned(),
            "listeners" => "processes of the node listen at other ports".to_owned(),
            "settings" => "the configuration changed".to_owned(),
            "drained" => format!("{address} was drained{}", self.describe_orderer()),
            "undrained" => format!("{address} is no longer drained, as ordered{}", self.describe_orderer()),
            "retry" => "it was tried again".to_owned(),
            "remembered" => "it was remembered from before the restart".to_owned(),
            "hold-due" => "the hold has reached its bound".to_owned(),
            "probe-accepted" => format!("{address} accepted a probe"),
            "probe-refused" => format!("{address} refused a probe"),
            "probe-silent" => format!("{address} did not answer a probe"),
            "address-reused" => format!("another pod has {address} now, according to the apiserver"),
            "address-claimed" => format!("{other} lists {address} for another target too, so it is probed"),
            "mass-loss" => {
                let [lost, populated] = self.lost.unwrap_or_default();
                format!("{lost} of {populated} services lost all their backends at once")
            }
            "readers-left" => "no client uses its former list".to_owned(),
            "applied" | "deleted" if self.is_by_health_checks() => self.describe_checked_endpoints(),
            _ => self.object_sentence(),
        }
    }

    /// Whether it is about a `[[service]]` block.
    fn is_of_block(&self) -> bool {
        self.source.as_deref() == Some(Source::Config.as_str())
    }

    /// Whether holdfast's own health checks changed which endpoints of a `[[service]]` are ready.
    fn is_by_health_checks(&self) -> bool {
        self.is_of_block() && self.writer.as_ref().is_some_and(|it| *it.manager == *HEALTH_CHECK_WRITER)
    }

    /// The endpoints whose health checks have turned. Their slice is made of the block, and no operator knows it.
    fn describe_checked_endpoints(&self) -> String {
        let Some(diff) = self.endpoints.as_ref().filter(|diff| !diff.changed.is_empty()) else {
            return "its health checks changed".to_owned();
        };
        let turned =
            diff.changed.iter().map(|it| format!("{} from {} to {}", it.address, it.before, it.after));
        let turned: Vec<String> = turned.collect();
        format!("its health checks turned {}", diff.join_addresses(&turned, ", "))
    }

    fn describe_orderer(&self) -> String {
        let by = self.by.as_ref().map(|by| format!(" by {by}"));
        let at = self.ordered.map(|at| format!(" at {}", crate::rfc3339::Rfc3339(at.seconds())));
        [by, at].into_iter().flatten().collect()
    }

    fn object_sentence(&self) -> String {
        let event = match &*self.event {
            "left" => "left for another service",
            event => event,
        };
        let kind = self.kind.as_deref().unwrap_or("object");
        let object = self.object.as_deref().unwrap_or_default();
        // Nobody wrote a slice of a block: it is made of the block.
        let mut text = match self.is_of_block() {
            true => format!("its [[service]] {event}"),
            false => format!("{kind} {object} {event}"),
        };
        if self.endpoints_null {
            text.push_str(" with `endpoints: null`");
        }
        if let Some(diff) = &self.endpoints {
            diff.append_to("endpoints ", &mut text);
        }
        self.append_fields(&mut text);
        if let Some(version) = &self.resource_version {
            push_args(&mut text, format_args!(", version {version}"));
        }
        if let Some(writer) = &self.writer {
            push_args(&mut text, format_args!(", written by {}", writer.sentence()));
        }
        if let Some(origin) = &self.origin {
            push_args(&mut text, format_args!(", from {origin}"));
        }
        text
    }

    /// Appends the other fields that differ; the line already has the endpoints.
    fn append_fields(&self, text: &mut String) {
        let other: Vec<&str> = self.fields.iter().map(|it| &**it).filter(|it| *it != "endpoints").collect();
        match (other.is_empty(), self.new, &*self.event) {
            (false, ..) => push_args(text, format_args!(", other {}", other.join(" "))),
            (true, true, "applied") => text.push_str(", new"),
            (true, false, "applied") if self.fields.is_empty() => {
                text.push_str(", only its metadata differs");
            }
            (true, ..) => {}
        }
    }
}

impl LastWriter {
    fn sentence(&self) -> String {
        let mut text = format!("{} ({}", self.manager, self.operation);
        if let Some(subresource) = &self.subresource {
            push_args(&mut text, format_args!(" of {subresource}"));
        }
        text.push(')');
        if let Some(time) = self.time {
            push_args(&mut text, format_args!(" at {}", crate::rfc3339::Rfc3339(time.seconds())));
        }
        text
    }
}

fn push_args(text: &mut String, more: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = text.write_fmt(more);
}

#[cfg(test)]
mod tests {
    use super::super::Changed;
    use super::*;

    /// What the health checks of a block change.
    fn turned_by_checks(source: Source) -> Trigger {
        let writer = LastWriter {
            manager: HEALTH_CHECK_WRITER.into(),
            operation: "Update".into(),
            subresource: None,
            time: None,
        };
        let turned = Changed { address: "127.0.0.9".into(), before: "ready".into(), after: "unready".into() };
        Trigger {
            event: "applied".into(),
            kind: Some("EndpointSlice".into()),
            object: Some("static/web-v4".into()),
            source: Some(source.as_str().into()),
            writer: Some(writer),
            endpoints: Some(Diff { changed: vec![turned], kept: 1, ..Diff::default() }),
            fields: vec!["endpoints".into()],
            ..Trigger::default()
        }
    }

    #[track_caller]
    fn check(source: Source, expected: &str) {
        assert_eq!(turned_by_checks(source).sentence(), expected);
    }

    #[test]
    fn health_checks_are_told_as_such_and_nobody_else_can_claim_to_be_them() {
        check(Source::Config, "its health checks turned 127.0.0.9 from ready to unready");
        check(
            Source::Kubernetes,
            "EndpointSlice static/web-v4 applied, endpoints ~127.0.0.9 ready to unready, 1 kept, written by \
             health-check (Update)",
        );
    }

    #[test]
    fn addresses_beyond_the_limit_are_counted_with_those_that_the_record_left_out() {
        let turn = |host: usize| Changed {
            address: format!("10.0.0.{host}"),
            before: "ready".into(),
            after: "unready".into(),
        };
        let changed = (0..=ADDRESSES_MAX).map(turn).collect();
        let diff = Diff { changed, omitted: 18, ..Diff::default() };
        let mut text = String::new();
        diff.append_to("", &mut text);
        assert!(text.ends_with(" and 19 more"), "{text}");
        let trigger = Trigger { endpoints: Some(diff), ..turned_by_checks(Source::Config) };
        assert!(trigger.sentence().ends_with(" to unready and 19 more"), "{}", trigger.sentence());
    }

    #[test]
    fn a_claimed_node_port_has_a_star_for_its_addresses() {
        let trigger = Trigger {
            event: "claim-lost".into(),
            frontend: Some("0.0.0.0:30080/TCP".into()),
            other: Some("shop/api".into()),
            ..Trigger::default()
        };
        assert_eq!(trigger.sentence(), "*:30080/TCP is claimed by shop/api");
    }
}
