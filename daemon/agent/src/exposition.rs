//! Writes metrics in the text format of Prometheus, for each port that serves some.
//!
//! Invariant: the output is version 0.0.4 of the text format. No metrics library is needed.

pub mod process;

use std::fmt::{Display, Write as _};

use holdfast_core::str_enum::StrEnum;

use crate::engine::steps::Histogram;

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Metrics as text.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// Begins a metric. Writing to a String cannot fail.
    pub fn begin(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (place, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"{text}\"", if place == 0 { "{" } else { "," });
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// A metric with one label, which has a closed set of values.
    pub fn labelled_metric<T: StrEnum, V: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (T, V)>,
    ) {
        self.begin(name, kind, help);
        values.into_iter().for_each(|(word, value)| self.sample(name, &[(label, word.spelling())], value));
    }

    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.begin(name, "gauge", help);
        self.sample(name, &[], value);
    }

    pub fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.begin(name, "counter", help);
        self.sample(name, &[], value);
    }

    pub fn histogram(&mut self, name: &str, help: &str, of: &Histogram) {
        self.begin(name, "histogram", help);
        self.buckets(name, &[], of);
    }

    /// Histograms with one label, which has a closed set of values.
    pub(crate) fn histogram_by<'a, T: StrEnum>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        of: impl IntoIterator<Item = (T, &'a Histogram)>,
    ) {
        self.begin(name, "histogram", help);
        of.into_iter().for_each(|(word, of)| self.buckets(name, &[(label, word.spelling())], of));
    }

    fn buckets(&mut self, name: &str, labels: &[(&str, &str)], of: &Histogram) {
        let (buckets, count) = of.totals();
        let bucket = format!("{name}_bucket");
        for (most, so_many) in buckets {
            let most = most.as_secs_f64().to_string();
            self.sample(&bucket, &[labels, &[("le", &most)]].concat(), so_many);
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), count);
        self.sample(&format!("{name}_sum"), labels, of.sum().as_secs_f64());
        self.sample(&format!("{name}_count"), labels, count);
    }

    pub fn into_text(self) -> String {
        self.0
    }
}
