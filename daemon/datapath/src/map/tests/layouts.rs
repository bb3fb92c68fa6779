//! The layouts of pinned maps: those of each released version stay, or have pins of another version.
//!
//! Invariant: a daemon that adopts a pin reads each byte as the daemon that wrote it. The rules are those at the head
//! of `bpf/include/abi.h`.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use holdfast_fixtures::frozen::frozen_text;
use libbpf_rs::btf::types::{Array, Composite, Int, MemberAttr, Ptr};
use libbpf_rs::btf::{Btf, BtfKind, BtfType, ReferencesType as _};
use libbpf_rs::{AsRawLibbpf as _, OpenObject};

use crate::load;
use crate::map::{Map, MapScope};
use crate::pins::{FLOWS_VERSION, SOCKETS_VERSION, VERSION};

const FILE: &str = "maps.txt";

/// The place of each field, by its name.
type Fields = BTreeMap<String, String>;

/// One pinned map: its folder of pins, its form, and each field of its keys and values as `key.NAME OFFSET TYPE`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layout {
    folder: String,
    form: String,
    fields: Fields,
}

/// The folder of pins of a map; `None`: it is not pinned.
fn folder(map: Map) -> Option<String> {
    match map.scope() {
        MapScope::Generation(_) => Some(format!("v{VERSION}/g")),
        MapScope::Shared => Some(format!("v{VERSION}/shared")),
        MapScope::Packets => Some(format!("v{VERSION}/packets")),
        MapScope::Sockets => Some(format!("sockets{SOCKETS_VERSION}")),
        MapScope::Flows(_) => Some(format!("flows{FLOWS_VERSION}")),
        MapScope::Programs => None,
    }
}

/// Adds the fields of a type, each with its offset in bytes.
fn add_fields(btf: &Btf<'_>, (kind, name, offset): (BtfType<'_>, &str, u32), fields: &mut Fields) {
    let kind = kind.skip_mods_and_typedefs();
    if let Ok(number) = Int::try_from(kind) {
        fields.insert(name.to_owned(), format!("{offset} u{}", number.bits));
    } else if let Ok(array) = Array::try_from(kind) {
        let mut element = Fields::new();
        add_fields(btf, (array.contained_type(), "", 0), &mut element);
        let element: Vec<_> = element.iter().map(|(name, it)| format!("{name} {it}")).collect();
        fields.insert(
            name.to_owned(),
            format!("{offset} {}x[{}]", array.capacity(), element.join(", ").trim()),
        );
    } else if let Ok(composite) = Composite::try_from(kind) {
        for member in composite.iter() {
            let MemberAttr::Normal { offset: bits } = member.attr else { panic!("{name} has bit fields") };
            let inner = member.name.map(|name| name.to_string_lossy()).unwrap_or_default();
            let inner = if name.is_empty() { inner.into_owned() } else { format!("{name}.{inner}") };
            let member: BtfType<'_> = btf.type_by_id(member.ty).unwrap();
            add_fields(btf, (member, &inner, offset + bits / 8), fields);
        }
    } else {
        panic!("{name} is a {:?}", kind.kind());
    }
}

/// The fields of a map's keys and values, from its declaration.
fn declared_fields(btf: &Btf<'_>, map: &str) -> Fields {
    let variables = btf.type_by_kind::<BtfType<'_>>().filter(|it| it.kind() == BtfKind::Var);
    let mut variables = variables.filter(|it| it.name().is_some_and(|name| name == map));
    let variable = variables.next().unwrap_or_else(|| panic!("{map} is not declared"));
    let declared: BtfType<'_> = variable.next_type().unwrap();
    let declared = Composite::try_from(declared.skip_mods_and_typedefs()).unwrap();
    let mut fields = Fields::new();
    for member in declared.iter() {
        let part = member.name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if part == "key" || part == "value" {
            let pointer: Ptr<'_> = btf.type_by_id(member.ty).unwrap();
            add_fields(btf, (pointer.referenced_type(), &part, 0), &mut fields);
        }
    }
    fields
}

fn add_layouts(object: &OpenObject, layouts: &mut BTreeMap<String, Layout>) {
    // SAFETY: The object outlives the reference.
    let raw = unsafe { object.as_libbpf_object().as_ref() };
    let btf = Btf::from_bpf_object(raw).unwrap().expect("the programs have type information");
    for map in object.maps() {
        let name = map.name().to_string_lossy().into_owned();
        let Some(folder) = Map::from_name(&name).and_then(folder) else { continue };
        let (kind, key, value) = (map.map_type(), map.key_size(), map.value_size());
        let form = format!("{kind:?} key={key} value={value} entries={}", map.max_entries());
        let fields = declared_fields(&btf, &name);
        layouts.insert(name, Layout { folder, form, fields });
    }
}

fn layouts() -> BTreeMap<String, Layout> {
    let mut layouts = BTreeMap::new();
    load::for_each_object(&mut |object| add_layouts(object, &mut layouts)).unwrap();
    layouts
}

fn render(layouts: &BTreeMap<String, Layout>) -> String {
    let mut text = String::new();
    for (name, Layout { folder, form, fields }) in layouts {
        writeln!(text, "{name} {folder} {form}").unwrap();
        fields.iter().for_each(|(field, place)| writeln!(text, "\t{field} {place}").unwrap());
    }
    text
}

fn parse(text: &str) -> BTreeMap<String, Layout> {
    let mut layouts = BTreeMap::<String, Layout>::new();
    let mut last = String::new();
    for line in text.lines() {
        if let Some((field, place)) = line.strip_prefix('\t').and_then(|field| field.split_once(' ')) {
            let fields = layouts.get_mut(&last).map(|layout| &mut layout.fields);
            fields.expect("a map comes first").insert(field.to_owned(), place.to_owned());
        } else {
            let [name, folder, form] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            name.clone_into(&mut last);
            let (folder, form) = (folder.to_owned(), form.to_owned());
            layouts.insert(last.clone(), Layout { folder, form, fields: Fields::new() });
        }
    }
    layouts
}

/// Whether the field may become another one: a pad of a value, or of the keys of fragments, which expire in seconds.
fn may_change(map: &str, field: &str) -> bool {
    let is_pad = field.rsplit('.').next().is_some_and(|name| name.starts_with("pad"));
    is_pad && (field.starts_with("value") || map == Map::Fragments.name())
}

/// Shared maps that are gone, and that held nothing for longer than a second. An older daemon makes them anew.
const GONE: [&str; 1] = ["strays"];

/// What a daemon with the layouts `now` would read differently in pins of one with the layouts `then`.
fn broken(then: &BTreeMap<String, Layout>, now: &BTreeMap<String, Layout>) -> Vec<String> {
    let mut broken = Vec::new();
    for (name, old) in then {
        let Some(new) = now.get(name) else {
            if GONE.contains(&name.as_str()) {
                continue;
            }
            broken.push(format!("{name} is gone"));
            continue;
        };
        if new.folder != old.folder {
            continue;
        }
        if new.form != old.form {
            broken.push(format!("{name} was {} and is {}", old.form, new.form));
        }
        let stay = old.fields.iter().filter(|(field, _)| !may_change(name, field));
        let changed = stay.filter(|(field, place)| new.fields.get(*field) != Some(place));
        broken.extend(changed.map(|(field, place)| format!("{name}: {field} was at {place}")));
    }
    let is_generation = |layout: &Layout| layout.folder.ends_with("/g");
    let generations: Vec<_> = then.values().map(|old| &old.folder).collect();
    let added = now.iter().filter(|(name, new)| is_generation(new) && !then.contains_key(*name));
    let added = added.filter(|(_, new)| generations.contains(&&new.folder));
    broken.extend(added.map(|(name, _)| format!("{name} is a further map of a generation")));
    broken
}

#[test]
fn pinned_maps_keep_the_layout_of_each_released_version() {
    let now = layouts();
    assert!(now.len() > 30 && now.values().all(|layout| !layout.form.is_empty()));
    for then in frozen_text(FILE, render(&now).as_bytes()) {
        let found = broken(&parse(&then.text()), &now);
        assert!(found.is_empty(), "raise a version in pins.rs; since {}: {found:#?}", then.version);
    }
}

#[test]
fn a_changed_layout_is_found_unless_its_pins_have_another_version() {
    let then = layouts();
    assert_eq!(parse(&render(&then)), then);
    let change = |map: &str, change: &dyn Fn(&mut Layout)| {
        let mut now = then.clone();
        change(now.get_mut(map).unwrap());
        broken(&then, &now).len()
    };
    let field = |map: &str, at: usize| then[map].fields.keys().nth(at).unwrap().clone();
    let first = field("flow_table", 0);
    assert_eq!(change("flow_table", &|_| ()), 0);
    assert_eq!(change("flow_table", &|it| _ = it.fields.remove(&first)), 1);
    assert_eq!(change("flow_table", &|it| _ = it.fields.insert(first.clone(), "4 u8".to_owned())), 1);
    assert_eq!(
        change("flow_table", &|it| _ = it.fields.insert("value.new".to_owned(), "4 u8".to_owned())),
        0
    );
    assert_eq!(change("control", &|it| it.form.push('0')), 1);
    assert_eq!(change("flow_table", &|it| (it.folder, it.form) = ("flows2".to_owned(), String::new())), 0);
    let mut now = then.clone();
    now.insert("more".to_owned(), then["ports"].clone());
    assert_eq!(broken(&then, &now).len(), 1, "a map of a generation");
    now.remove("ports");
    assert_eq!(broken(&then, &now).len(), 2, "it is gone");
}

#[test]
fn only_a_pad_of_a_value_may_become_a_field() {
    assert!(may_change("ports", "value.pad") && may_change("fragments", "key.pad"));
    assert!(!may_change("frontends4", "key.pad") && !may_change("ports", "value.padlock.number"));
}
