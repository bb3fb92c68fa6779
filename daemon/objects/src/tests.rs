//! Each rule of parsing is a row.

mod imports;
mod services;
mod slices;
mod values;

use holdfast_core::facts::{ServiceFacts, SliceFacts};

use super::*;

fn provenance(defaulting: Defaulting) -> Provenance {
    Provenance { source: Source::Manifests, origin: Some("web.yaml".into()), defaulting }
}

fn decode_service(object: &Value, defaulting: Defaulting) -> Result<ServiceFacts, Rejection> {
    let provenance = provenance(defaulting);
    match from_value(object) {
        Ok(wire) => parse_service(&wire, &provenance),
        Err(error) => Err(reject_object(ObjectKind::Service, object, &error, &provenance)),
    }
}

fn decode_slice(
    object: &Value,
    defaulting: Defaulting,
) -> Result<(SliceFacts, Option<Rejection>), Rejection> {
    let provenance = provenance(defaulting);
    match from_value(object) {
        Ok(wire) => parse_slice(&wire, &provenance),
        Err(error) => Err(reject_object(ObjectKind::Slice, object, &error, &provenance)),
    }
}
