//! What a damaged file yields: all its whole records, the rest from the previous file, and the names of lost
//! services.

use super::*;

/// Two files: the newest one, and the previous one, both of the same table.
fn twice() -> (tempfile::TempDir, StateFolder) {
    let (folder, state) = written();
    state.store(&context(), &snapshot()).unwrap();
    (folder, state)
}

fn damage(state: &StateFolder, damage: impl FnOnce(&mut Vec<u8>)) {
    let path = state.path.join(FILE);
    let mut bytes = fs::read(&path).unwrap();
    damage(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn names(kept: &SavedState) -> Vec<String> {
    kept.remembered.services.iter().map(|view| view.key.name.to_string()).collect()
}

fn all() -> Vec<String> {
    let mut names: Vec<_> = snapshot().services.iter().map(|view| view.key.name.to_string()).collect();
    names.sort();
    names
}

/// A damage to a file, with its name.
type FileDamage = (String, Box<dyn Fn(&mut Vec<u8>)>);

/// The damages that disks, file systems and people cause.
fn damages(length: usize) -> Vec<FileDamage> {
    let mut damages: Vec<FileDamage> = vec![
        ("emptied".to_owned(), Box::new(Vec::clear)),
        ("another file".to_owned(), Box::new(|it| *it = b"[apiserver]\n".to_vec())),
        ("another version".to_owned(), Box::new(|it| it[12] = 99)),
        ("longer".to_owned(), Box::new(|it| it.push(0))),
    ];
    for part in 1..20 {
        let at = length * part / 20;
        damages.push((format!("cut at {at}"), Box::new(move |it| it.truncate(at))));
        damages.push((format!("flipped at {at}"), Box::new(move |it| it[at] ^= 4)));
        damages.push((
            format!("zeroed at {at}"),
            Box::new(move |it| it[at..].iter_mut().take(64).for_each(|b| *b = 0)),
        ));
    }
    damages
}

#[test]
fn any_damage_of_the_newest_file_loses_no_service() {
    let (_folder, state) = twice();
    let length = usize::try_from(fs::metadata(state.path.join(FILE)).unwrap().len()).unwrap();
    for (what, spoil) in damages(length) {
        let (_folder, state) = twice();
        damage(&state, spoil);
        let kept = state.load().unwrap_or_else(|error| panic!("{what}: {error}")).unwrap();
        let mut found = names(&kept);
        found.sort();
        assert_eq!(found, all(), "{what}");
    }
}

/// Without a previous file, damage costs the affected records, and they are named.
#[test]
fn damage_loses_only_its_own_records_and_names_them() {
    let (_folder, state) = written();
    let name = b"full";
    damage(&state, |bytes| {
        // The last one: its own record, not the list of names.
        let places: Vec<_> = (0..bytes.len() - 4).filter(|at| &bytes[*at..*at + 4] == name).collect();
        bytes[places[1]] ^= 1;
    });
    let kept = state.load().unwrap().unwrap();
    let damage = kept.damage.clone().unwrap();
    assert_eq!(
        (damage.lost.count, damage.older.count, damage.lost.join_names().as_str()),
        (1, 0, "shop/full")
    );
    assert_eq!(names(&kept).len(), all().len() - 1);
    assert!(!names(&kept).contains(&"shop/full".to_owned()));
    assert!(kept.remembered.progress.is_empty(), "a resumed watch would never deliver it");
    assert_eq!(kept.context, context());
}

/// A disk that was full, or a lost write, may end a file between two records.
#[test]
fn a_file_that_ends_before_its_last_record_is_damaged() {
    let (_folder, state) = written();
    damage(&state, |bytes| {
        let mark = b"\xff\xferec\xfe\xff";
        let mut places = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(mark));
        let last = places.next_back().unwrap();
        bytes.truncate(last);
    });
    assert!(state.load().unwrap().unwrap().damage.is_some());
}

#[test]
fn a_damaged_file_never_replaces_the_previous_one() {
    let (_folder, state) = twice();
    assert_eq!(state.load().unwrap().unwrap().damage, None);
    damage(&state, |bytes| bytes.truncate(30));
    let kept = state.load().unwrap().unwrap();
    let damage = kept.damage.unwrap();
    assert_eq!((usize::try_from(damage.older.count).unwrap(), damage.lost.count), (all().len(), 0));
    assert!(damage.error.ends_with("some of its records are not as they were written"), "{}", damage.error);
    // As after a crash before the first write.
    assert_eq!(state.load().unwrap().unwrap().remembered.services.len(), all().len());
    state.store(&context(), &snapshot()).unwrap();
    assert_eq!(state.load().unwrap().unwrap().damage, None);
    let length = |name: &str| fs::metadata(state.path.join(name)).unwrap().len();
    assert!(length(PREVIOUS) > 30, "the previous file is kept, and not the damaged one");
    assert_eq!(length(DAMAGED), 30);
}

/// The previous file has no service, as on a node's first start.
#[test]
fn records_of_only_a_damaged_file_survive_until_it_is_rewritten() {
    let folder = tempfile::tempdir().unwrap();
    let state = StateFolder::new(folder.path());
    state.store(&context(), &Snapshot::default()).unwrap();
    state.store(&context(), &snapshot()).unwrap();
    damage(&state, |bytes| bytes.push(0));
    let found = |kept: &SavedState| {
        let mut found = names(kept);
        found.sort();
        found
    };
    for start in 1..=3 {
        let kept = state.load().unwrap().unwrap();
        assert_eq!(found(&kept), all(), "at start {start}");
        let error = &kept.damage.unwrap().error;
        assert!(
            error.ends_with("some of its records are not as they were written"),
            "at start {start}: {error}"
        );
    }
    state.store(&context(), &snapshot()).unwrap();
    let kept = state.load().unwrap().unwrap();
    assert_eq!((found(&kept), kept.damage), (all(), None));
}

/// A process killed between two steps of a write leaves each file that it had not replaced.
#[test]
fn a_write_removes_no_file_before_its_replacement_exists() {
    let (_folder, state) = twice();
    fs::remove_file(state.path.join(FILE)).unwrap();
    let before = state.path.join(PREVIOUS);
    let of_before = fs::read(&before).unwrap();
    file::keep_copy(&state.path.join(FILE), &before).unwrap();
    assert_eq!(fs::read(&before).unwrap(), of_before);
    state.store(&context(), &snapshot()).unwrap();
    assert_eq!(fs::read(&before).unwrap(), of_before, "no previous file existed");
    assert_eq!(state.load().unwrap().unwrap().damage, None);
}

/// A folder in the file's place cannot block the write.
#[test]
fn a_folder_in_the_place_of_the_file_is_set_aside() {
    let (_folder, state) = twice();
    fs::remove_file(state.path.join(FILE)).unwrap();
    fs::create_dir(state.path.join(FILE)).unwrap();
    assert_eq!(names(&state.load().unwrap().unwrap()).len(), all().len());
    state.store(&context(), &snapshot()).unwrap();
    assert_eq!(state.load().unwrap().unwrap().damage, None);
}

proptest! {
    /// No service appears that was not written, and at most the damaged one is missing.
    #[test]
    fn any_changed_byte_is_detected_and_costs_at_most_one_service(
        place in any::<prop::sample::Index>(),
        bit in 0_u8..8,
    ) {
        let (_folder, state) = written();
        let mut at = 0;
        damage(&state, |bytes| {
            at = place.index(bytes.len());
            bytes[at] ^= 1 << bit;
        });
        match state.load() {
            Ok(kept) => {
                let kept = kept.unwrap();
                prop_assert!(kept.damage.is_some());
                prop_assert!(names(&kept).len() >= all().len() - 1);
                prop_assert!(names(&kept).iter().all(|name| all().contains(name)));
            }
            Err(_) => prop_assert!(at < 16, "only magic and version affect every record"),
        }
    }
}
