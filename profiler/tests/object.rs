//! The built BPF object against the probe specifications, without root: every program and every map must be known to
//! both sides, and nothing in it may panic.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics shows the line")]

use std::collections::BTreeSet;

use object::{Object, ObjectSymbol};
use profiler::{
    load::{OBJECT, Sizes},
    probes,
};

/// Programs of the object by name: global functions in sections of program types.
fn programs() -> BTreeSet<String> {
    let file = object::File::parse(OBJECT).unwrap();
    let is_program = |section: &str| {
        ["tp_btf", "raw_tp", "fentry", "fexit", "kprobe", "kretprobe"]
            .iter()
            .any(|kind| section.starts_with(kind))
    };
    file.symbols()
        .filter(|symbol| symbol.is_global())
        .filter(|symbol| {
            let section = symbol.section_index().and_then(|index| file.section_by_index(index).ok());
            section.is_some_and(|section| is_program(object::ObjectSection::name(&section).unwrap()))
        })
        .map(|symbol| symbol.name().unwrap().to_owned())
        .collect()
}

#[test]
fn programs_in_object_and_specs_match_both_ways() {
    let mut wanted: BTreeSet<String> = probes::UNATTACHED.iter().map(|name| (*name).to_owned()).collect();
    for spec in probes::ALL {
        for hook in spec.hooks {
            wanted.extend(hook.attachments.iter().map(|attachment| attachment.program.to_owned()));
        }
    }
    assert_eq!(programs(), wanted);
}

#[test]
fn every_map_that_is_sized_by_the_host_is_in_the_object() {
    let file = object::File::parse(OBJECT).unwrap();
    let names: BTreeSet<&str> = file.symbols().filter_map(|symbol| symbol.name().ok()).collect();
    let sizes = Sizes::within(4, Sizes::default_bound(4)).unwrap();
    for (name, _) in sizes.entries() {
        assert!(names.contains(name), "{name}");
    }
    for name in ["CONTROL", "TGIDS", "CGROUPS"] {
        assert!(names.contains(name), "{name}");
    }
}

#[test]
fn nothing_in_the_object_panics() {
    let file = object::File::parse(OBJECT).unwrap();
    let panics: Vec<&str> = file
        .symbols()
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| name.contains("panick") || name.contains("unwrap_failed"))
        .collect();
    assert!(panics.is_empty(), "{panics:?}");
}
