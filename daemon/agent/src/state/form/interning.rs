//! Interns texts that services share: the file stores each separately, while an apiserver's objects share them.
//!
//! Invariant: the service stays equal.

use std::sync::Arc;

use holdfast_core::facts::{Meta, ServiceFacts, SliceFacts};
use holdfast_core::snapshot::ServiceView;

/// Shares this service's texts with those of the services read before it.
pub(super) fn intern_texts(view: &mut ServiceView) {
    if let Some(facts) = view.facts.as_mut().map(Arc::make_mut) {
        intern_service(facts);
    }
    Arc::make_mut(&mut view.slices).iter_mut().map(Arc::make_mut).for_each(intern_slice);
    let of_ports = view.ports.iter_mut().map(|port| &mut port.key.name);
    of_ports
        .chain(view.frontends.iter_mut().map(|frontend| &mut frontend.port_name))
        .for_each(intern_in_place);
}

fn intern_service(facts: &mut ServiceFacts) {
    intern_meta(&mut facts.meta);
    facts.ports.iter_mut().for_each(|port| intern_in_place(&mut port.name));
}

fn intern_slice(slice: &mut SliceFacts) {
    intern_meta(&mut slice.meta);
    slice.ports.iter_mut().for_each(|port| intern_in_place(&mut port.name));
}

fn intern_meta(meta: &mut Meta) {
    meta.origin.iter_mut().for_each(intern_in_place);
    if let Some(writer) = &mut meta.writer {
        [&mut writer.manager, &mut writer.operation]
            .into_iter()
            .chain(&mut writer.subresource)
            .for_each(intern_in_place);
    }
}

fn intern_in_place(text: &mut Arc<str>) {
    *text = holdfast_objects::intern_text(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_fixtures::many;

    #[test]
    fn texts_shared_by_services_are_interned() {
        let mut views: Vec<ServiceView> =
            many(2, 1).services.iter().map(|view| ServiceView::clone(view)).collect();
        let before = format!("{views:?}");
        views.iter_mut().for_each(intern_texts);
        assert_eq!(format!("{views:?}"), before);
        let texts = |view: &ServiceView| {
            let facts = view.facts.as_ref().unwrap();
            let port = &view.ports[0].key;
            [&view.slices[0].ports[0].name, &view.frontends[0].port_name, &facts.ports[0].name, &port.name]
                .map(Arc::clone)
        };
        let all: Vec<_> = views.iter().flat_map(texts).collect();
        assert!(all.iter().all(|text| Arc::ptr_eq(text, &all[0])), "{all:?}");
    }
}
