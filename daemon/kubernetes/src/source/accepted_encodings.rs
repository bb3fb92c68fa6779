//! The encodings to request for a kind.
//!
//! Invariant: protobuf comes first where the configuration allows it, and a JSON reply is always accepted. If the
//! daemon cannot parse the protobuf of a kind, it requests that kind as JSON for a while; then it tries protobuf again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::resource::Resource;
use super::watch_error::WatchError;
use crate::apiserver::Encoding;
use holdfast_config::Encodings;

/// Requests JSON only.
pub(super) const JSON: &str = crate::apiserver::JSON;
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PROTOBUF_OR_JSON: &str = "application/vnd.kubernetes.protobuf,application/json";

/// For lists of metadata only; a server that does not support them replies with whole objects.
const JSON_METADATA: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
const PROTOBUF_METADATA: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
                                 application/vnd.kubernetes.protobuf";
const PROTOBUF_OR_JSON_METADATA: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
                               application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
                               application/json";

/// The encodings that list, watch and audit of a kind request. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct AcceptedEncodings {
    configured: Encodings,
    /// Until when to request JSON only.
    json_until: Arc<Mutex<Option<Instant>>>,
}

impl AcceptedEncodings {
    pub(super) fn new(wanted: Encodings) -> Self {
        Self { configured: wanted, json_until: Arc::default() }
    }

    /// `Accept` for objects.
    pub(super) fn object_accept(&self) -> &'static str {
        match self.current() {
            Encodings::Auto => PROTOBUF_OR_JSON,
            Encodings::Protobuf => PROTOBUF,
            Encodings::Json => JSON,
        }
    }

    /// `Accept` for lists of metadata only.
    pub(super) fn metadata_accept(&self) -> &'static str {
        match self.current() {
            Encodings::Auto => PROTOBUF_OR_JSON_METADATA,
            Encodings::Protobuf => PROTOBUF_METADATA,
            Encodings::Json => JSON_METADATA,
        }
    }

    /// Whether another encoding can be requested instead.
    pub(super) fn can_fall_back(&self) -> bool {
        self.current() == Encodings::Auto
    }

    /// Requests JSON for `time`, and logs it, if the reply's encoding may be the cause of the error.
    pub(super) fn handle_error(
        &self,
        what: Resource,
        encoding: Option<Encoding>,
        ending: &WatchError,
        time: Duration,
    ) {
        let was_protobuf = encoding == Some(Encoding::Protobuf);
        let is_to_blame = ending.is_not_acceptable() || (was_protobuf && ending.is_encoding_suspect());
        if is_to_blame && self.fall_back_to_json(time) {
            let seconds = time.as_secs();
            tracing::warn!(
                watch = %what, error = %ending, seconds,
                "cannot read protobuf; requesting JSON for a while"
            );
        }
    }

    /// `false`: JSON is already requested, or the configuration allows only protobuf.
    fn fall_back_to_json(&self, time: Duration) -> bool {
        let falls = self.can_fall_back();
        if falls {
            *self.json_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + time);
        }
        falls
    }

    fn current(&self) -> Encodings {
        let until = *self.json_until.lock().unwrap_or_else(PoisonError::into_inner);
        let is_doubted = until.is_some_and(|until| Instant::now() < until);
        if is_doubted { Encodings::Json } else { self.configured }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(wanted: Encodings, first: &str, falls: bool, then: &str) {
        let offer = AcceptedEncodings::new(wanted);
        assert_eq!((offer.object_accept(), offer.fall_back_to_json(Duration::from_secs(60))), (first, falls));
        assert_eq!((offer.object_accept(), offer.fall_back_to_json(Duration::from_secs(60))), (then, false));
    }

    #[test]
    fn only_auto_falls_back_to_json_and_only_once() {
        check(Encodings::Auto, PROTOBUF_OR_JSON, true, JSON);
        check(Encodings::Protobuf, PROTOBUF, false, PROTOBUF);
        check(Encodings::Json, JSON, false, JSON);
    }

    #[test]
    fn protobuf_is_tried_again_after_a_while() {
        let offer = AcceptedEncodings::new(Encodings::Auto);
        assert!(offer.fall_back_to_json(Duration::ZERO));
        assert_eq!(
            (offer.object_accept(), offer.metadata_accept()),
            (PROTOBUF_OR_JSON, PROTOBUF_OR_JSON_METADATA)
        );
    }

    #[test]
    fn a_list_of_names_uses_the_encodings_of_objects() {
        for (wanted, protobuf, json) in [
            (Encodings::Auto, true, true),
            (Encodings::Protobuf, true, false),
            (Encodings::Json, false, true),
        ] {
            let asked = AcceptedEncodings::new(wanted).metadata_accept();
            assert_eq!((asked.contains("protobuf"), asked.contains("json")), (protobuf, json), "{asked}");
            assert!(asked.contains("as=PartialObjectMetadataList") && !asked.contains(' '));
        }
    }
}
